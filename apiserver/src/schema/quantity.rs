//! Quantities of resources, such as `100m` of CPU and `1.5Gi` of memory. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

use serde_json::Value;

/// The suffixes of DecimalSI, and their powers of 10.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// The suffixes of BinarySI. Each is 1024 times the one before.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Most digits of a quantity, so that an `i128` holds it. kube-apiserver has no limit.
const DIGITS_MAX: usize = 36;

/// kube-apiserver rounds all resources up to a thousandth: `SetDefaults_ResourceList` of its core/v1.
const SCALE_MIN: i32 = -3;

#[derive(PartialEq)]
enum Format {
    DecimalSi,
    DecimalExponent,
    BinarySi,
}

/// A number: `mantissa` * 10^`exponent`.
struct Quantity {
    mantissa: i128,
    exponent: i32,
    format: Format,
    /// Whether `ParseQuantity` of apimachinery keeps the text. It does so for `007`, too.
    keeps_text: bool,
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Parses `100m`, `1.5Gi`, `1e3`. A float is exact enough to compare two quantities.
pub(crate) fn quantity(value: &Value) -> Option<f64> {
    let Quantity { mantissa, exponent, .. } = Quantity::parse(&text(value)?)?;
    format!("{mantissa}e{exponent}").parse().ok()
}

/// The form in which kube-apiserver stores a quantity: `1` for `1000m`, `512Mi` for `0.5Gi`, `1500m` for 1.5.
pub(crate) fn canonical(value: &Value) -> Option<String> {
    let text = text(value)?;
    let quantity = Quantity::parse(&text)?;
    Some(if quantity.keeps_text { text } else { quantity.canonical() })
}

impl Quantity {
    fn parse(text: &str) -> Option<Quantity> {
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-');
        let (number, suffix) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
        let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let is_valid = !(whole.is_empty() && fraction.is_empty()) && unsigned.len() <= DIGITS_MAX;
        let whole = whole.trim_start_matches('0');
        let digits = format!("{}{fraction}", if whole.is_empty() { "0" } else { whole });
        let mut mantissa = digits.parse::<u128>().ok().filter(|_| is_valid)?.cast_signed();
        let mut exponent = 0;
        let format = if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            exponent = *power;
            Format::DecimalSi
        } else if BINARY.contains(&suffix) {
            Format::BinarySi
        } else {
            exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            Format::DecimalExponent
        };
        exponent = exponent.saturating_sub(fraction.len() as i32);
        let mut keeps_text = exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0');
        keeps_text &= exponent >= SCALE_MIN && digits.len() <= 18;
        if format == Format::BinarySi {
            let power = BINARY.iter().position(|name| *name == suffix).unwrap_or_default();
            keeps_text = fraction.is_empty() && digits.len() + 3 * power < 15 && mantissa % 8 != 0;
            mantissa = mantissa.checked_mul(1 << (10 * power))?;
            if mantissa / 10_i128.pow(fraction.len() as u32) > i64::MAX.into() {
                (mantissa, exponent) = (i64::MAX.into(), 0);
            }
        }
        if exponent < SCALE_MIN {
            // A quantity is never rounded to zero.
            let unit = 10_i128.checked_pow(SCALE_MIN.abs_diff(exponent)).unwrap_or(i128::MAX);
            (mantissa, exponent) = (mantissa / unit + i128::from(mantissa % unit > 0), SCALE_MIN);
        }
        if number.starts_with('-') {
            mantissa = -mantissa;
        }
        Some(Quantity { mantissa, exponent, format, keeps_text })
    }

    /// `CanonicalizeBytes` of apimachinery.
    fn canonical(&self) -> String {
        let &Quantity { mut mantissa, mut exponent, .. } = self;
        if mantissa == 0 {
            return "0".to_owned();
        }
        while mantissa % 10 == 0 {
            (mantissa, exponent) = (mantissa / 10, exponent.saturating_add(1));
        }
        if self.format == Format::BinarySi && exponent >= 0 {
            let mut number = mantissa * 10_i128.pow(exponent.cast_unsigned());
            if number.abs() >= 1024 {
                let mut power = 0;
                while number % 1024 == 0 {
                    (number, power) = (number / 1024, power + 1);
                }
                return format!("{number}{}", BINARY[power]);
            }
        }
        mantissa *= 10_i128.pow(exponent.rem_euclid(3).cast_unsigned());
        exponent -= exponent.rem_euclid(3);
        if self.format == Format::DecimalExponent && exponent != 0 {
            return format!("{mantissa}e{exponent}");
        }
        // kube-apiserver has no suffix above E, and writes none.
        let suffix = DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(name, _)| name);
        format!("{mantissa}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_go() {
        for good in ["1", "100m", "1.5Gi", "-3", "+.5", "1e3", "2E-3", "5E"] {
            assert!(quantity(&json!(good)).is_some(), "{good}");
        }
        for bad in ["", "many", "1x", "--1", "1 Gi", "Gi"] {
            assert_eq!(quantity(&json!(bad)), None, "{bad}");
        }
        let exponents = ["1e2147483647", "1e-2147483648", "0e-999", "1e4000000000"];
        assert_eq!(exponents.map(|text| quantity(&json!(text)).is_some()), [true, true, true, false]);
    }

    /// `apiserver/contract/nodes.http` has more, from kube-apiserver.
    #[test]
    fn a_canonical_quantity_stays_as_it_is() {
        for (text, wanted) in [("-1.5", "-1500m"), ("-2048Mi", "-2Gi"), ("-0", "0"), ("-.1Ki", "-102400m")] {
            assert_eq!(canonical(&json!(text)).as_deref(), Some(wanted), "{text}");
            assert_eq!(canonical(&json!(wanted)).as_deref(), Some(wanted));
        }
    }
}
