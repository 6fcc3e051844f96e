//! Quantities of resources, such as `100m` of CPU and `1.5Gi` of memory. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

use serde_json::Value;

/// The suffixes of a quantity, and their factors.
const UNITS: [(&str, f64); 16] = [
    ("", 1.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("Ki", 1_024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
];

/// Parses `100m`, `1.5Gi`, `1e3`. A float is exact enough to compare two quantities.
pub(crate) fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        value => value.as_str()?,
    };
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-');
    let (number, unit) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => *factor,
        None => 10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number.parse::<f64>().ok()? * factor)
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
    }
}
