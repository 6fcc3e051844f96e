//! Quantities of resources, such as `100m` of CPU and `1.5Gi` of memory. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

/// The suffixes of DecimalSI, and their powers of 10.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// The suffixes of BinarySI. Each is 1024 times the one before.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Most digits of a quantity, so that an `i128` holds it. kube-apiserver has no limit.
const DIGITS_MAX: usize = 36;

/// kube-apiserver rounds all resources up to a thousandth: `SetDefaults_ResourceList` of its core/v1.
const MILLI: i32 = -3;
/// The largest sum. With two digits more, an `i128` still holds it.
const MANTISSA_MAX: i128 = 10_i128.pow(36) - 1;

/// apimachinery rounds each quantity up to a billionth.
const NANO: i32 = -9;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    DecimalSi,
    DecimalExponent,
    BinarySi,
}

/// A number: `mantissa` * 10^`exponent`.
#[derive(Clone, Debug)]
pub struct Quantity {
    mantissa: i128,
    exponent: i32,
    format: Format,
    /// Whether apimachinery keeps it as an `int64Amount`.
    is_small: bool,
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
pub fn quantity(value: &Value) -> Option<f64> {
    let Quantity { mantissa, exponent, .. } = Quantity::read(value)?;
    format!("{mantissa}e{exponent}").parse().ok()
}

/// The form in which kube-apiserver stores a quantity: `1` for `1000m`, `512Mi` for `0.5Gi`, `1500m` for 1.5.
pub fn canonical(value: &Value) -> Option<String> {
    let text = text(value)?;
    let quantity = Quantity::rounded(&text, MILLI)?;
    Some(if quantity.keeps_text { text } else { quantity.to_string() })
}

impl Quantity {
    /// Parses a quantity as apimachinery does.
    pub fn parse(text: &str) -> Option<Quantity> {
        Quantity::rounded(text, NANO)
    }

    /// Reads a resource as kube-apiserver does, rounded up to a thousandth.
    pub fn read(value: &Value) -> Option<Quantity> {
        Quantity::rounded(&text(value)?, MILLI)
    }

    /// Parses a quantity, and rounds it up to this power of 10.
    fn rounded(text: &str, scale_min: i32) -> Option<Quantity> {
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-');
        let (number, suffix) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
        let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let is_valid = !(whole.is_empty() && fraction.is_empty())
            && unsigned.len() <= DIGITS_MAX
            && [whole, fraction].iter().all(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
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
        let mut is_small = exponent >= NANO && digits.len() <= 18;
        if format == Format::BinarySi {
            let power = BINARY.iter().position(|name| *name == suffix).unwrap_or_default();
            is_small = fraction.is_empty() && digits.len() + 3 * power < 15;
            keeps_text = mantissa % 8 != 0;
            mantissa = mantissa.checked_mul(1 << (10 * power))?;
            if mantissa / 10_i128.pow(fraction.len() as u32) > i64::MAX.into() {
                (mantissa, exponent) = (i64::MAX.into(), 0);
            }
        }
        keeps_text &= is_small && exponent >= scale_min;
        if exponent < scale_min {
            // A quantity is never rounded to zero.
            let unit = 10_i128.checked_pow(scale_min.abs_diff(exponent)).unwrap_or(i128::MAX);
            (mantissa, exponent) = (mantissa / unit + i128::from(mantissa % unit > 0), scale_min);
        }
        if number.starts_with('-') {
            mantissa = -mantissa;
        }
        Some(Quantity { mantissa, exponent, format, is_small, keeps_text })
    }

    /// The error of `ParseQuantity` for a text that is no quantity.
    pub fn parse_error(text: &str) -> &'static str {
        let digits = |text: &'_ str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
        let number = digits(text.strip_prefix(['+', '-']).unwrap_or(text));
        let suffix = digits(number.strip_prefix('.').unwrap_or(&number));
        let after = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let is_complete = digits(after.strip_prefix(['+', '-']).unwrap_or(after)).is_empty();
        if is_complete && !text.is_empty() {
            return "unable to parse quantity's suffix";
        }
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    }

    /// -1, 0 or 1.
    pub fn signum(&self) -> i64 {
        self.mantissa.signum() as i64
    }

    /// The number, if Go keeps it as a whole one: `1000m` is not.
    pub fn whole(&self) -> Option<i64> {
        let factor = 10_i128.checked_pow(self.exponent.try_into().ok()?);
        let whole = self.mantissa.checked_mul(factor.filter(|_| self.is_small)?)?;
        whole.try_into().ok()
    }

    /// The number. The last bit may differ from that in Go.
    pub fn float(&self) -> f64 {
        self.mantissa as f64 * format!("1e{}", self.exponent).parse::<f64>().unwrap_or_default()
    }

    /// The number in thousandths: exact, unless an `f64` cannot hold it. As `MilliValue` of apimachinery.
    pub fn milli(&self) -> f64 {
        self.mantissa as f64 * 10_f64.powi(self.exponent - MILLI)
    }

    /// The mantissa with this exponent. `None` if an `i128` cannot hold it.
    fn mantissa_at(&self, exponent: i32) -> Option<i128> {
        if self.mantissa == 0 {
            return Some(0);
        }
        self.mantissa.checked_mul(10_i128.checked_pow(self.exponent.abs_diff(exponent))?)
    }

    /// Compares two numbers, whatever their formats.
    pub fn compare(&self, other: &Quantity) -> Ordering {
        let exponent = self.exponent.min(other.exponent);
        match (self.mantissa_at(exponent), other.mantissa_at(exponent)) {
            (Some(one), Some(other)) => one.cmp(&other),
            // What does not fit is larger than the other mantissa, which does.
            (None, _) => self.signum().cmp(&0),
            (_, None) => 0.cmp(&other.signum()),
        }
    }

    /// The sum with a multiple of another quantity, at most 36 digits large.
    pub fn add(&self, other: &Quantity, times: i128) -> Quantity {
        let exponent = match (self.mantissa, other.mantissa) {
            (_, 0) => self.exponent,
            (0, _) => other.exponent,
            (_, _) => self.exponent.min(other.exponent),
        };
        let most = |one: &Quantity| MANTISSA_MAX * one.mantissa.signum();
        let at = |one: &Quantity| one.mantissa_at(exponent).unwrap_or_else(|| most(one));
        let sum = at(self).saturating_add(at(other).saturating_mul(times));
        let mantissa = sum.clamp(-MANTISSA_MAX, MANTISSA_MAX);
        let is_small = self.is_small && other.is_small && i64::try_from(mantissa).is_ok();
        let format = if self.mantissa == 0 { other.format } else { self.format };
        Quantity { mantissa, exponent, format, is_small, keeps_text: false }
    }

    /// The next whole number.
    pub fn ceil(&self) -> Quantity {
        let Some(unit) = 10_i128.checked_pow(self.exponent.min(0).unsigned_abs()) else {
            return self.clone();
        };
        let (whole, rest) = (self.mantissa.div_euclid(unit), self.mantissa.rem_euclid(unit));
        let mantissa = whole + i128::from(rest > 0);
        Quantity { mantissa, exponent: self.exponent.max(0), keeps_text: false, ..self.clone() }
    }

    /// A whole number.
    pub fn from_int(int: i64) -> Quantity {
        let (mantissa, format) = (int.into(), Format::DecimalExponent);
        Quantity { mantissa, exponent: 0, format, is_small: true, keeps_text: false }
    }
}

impl fmt::Display for Quantity {
    /// `CanonicalizeBytes` of apimachinery.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Quantity { mut mantissa, mut exponent, .. } = self;
        if mantissa == 0 {
            return f.write_str("0");
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
                return write!(f, "{number}{}", BINARY[power]);
            }
        }
        mantissa *= 10_i128.pow(exponent.rem_euclid(3).cast_unsigned());
        exponent -= exponent.rem_euclid(3);
        if self.format == Format::DecimalExponent && exponent != 0 {
            return write!(f, "{mantissa}e{exponent}");
        }
        // kube-apiserver has no suffix above E, and writes none.
        let suffix = DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(name, _)| name);
        write!(f, "{mantissa}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.compare(other).is_eq()
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
        for bad in ["", "many", "1x", "--1", "++1", "-+1", "1 Gi", "Gi"] {
            assert_eq!(quantity(&json!(bad)), None, "{bad}");
        }
        let exponents = ["1e2147483647", "1e-2147483648", "0e-999", "1e4000000000"];
        assert_eq!(exponents.map(|text| quantity(&json!(text)).is_some()), [true, true, true, false]);
    }

    #[test]
    fn a_part_of_a_byte_counts_as_one() {
        for (text, wanted) in [("1500m", "2"), ("1Gi", "1Gi"), ("-1500m", "-1"), ("0", "0"), ("1k", "1k")] {
            assert_eq!(Quantity::parse(text).map(|one| one.ceil().to_string()).as_deref(), Some(wanted));
        }
    }

    #[test]
    fn a_sum_with_zero_has_the_format_of_the_other_quantity() {
        let [zero, one] = ["0", "1Gi"].map(|text| Quantity::parse(text).expect("a quantity"));
        assert_eq!(zero.add(&one, 1).to_string(), "1Gi");
    }

    /// It has up to 36 digits, and two more where it is printed.
    #[test]
    fn a_sum_has_room_for_no_more_digits_than_it_prints() {
        let most = Quantity::parse("9999999999999999999999999999999999.9").expect("a quantity");
        let sum = (0..2000).fold(most.clone(), |sum, _| sum.add(&most, 1));
        assert!(sum.compare(&most).is_gt() && sum.to_string().starts_with("999"), "{sum}");
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
