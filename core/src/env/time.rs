//! Lengths of time as users write them, in variables and on command lines.

use std::time::Duration;

/// Seconds that no wait lasts, a hundred years; deadlines and their multiples can still represent it.
const LONGEST: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

/// Reads a length of time: seconds, or a number with a unit, as in `1.5`, `500ms`, `5s`, `2m` and `1h`. Nothing is longer than
/// a hundred years.
///
/// # Errors
/// A sentence about `text`.
pub fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let Some(number) = digits.parse::<f64>().ok().filter(|number| number.is_finite()) else {
        return Err(format!("{text} is not a time such as 500ms, 5s or 2m"));
    };
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit {other}: use ms, s, m or h")),
    };
    match Duration::try_from_secs_f64((number * unit).min(LONGEST)) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("{text} is not more than 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text| time(text).map(|time| time.as_millis());
        assert_eq!([ms("500ms"), ms("5"), ms("1.5s"), ms(" 7 ")], [Ok(500), Ok(5000), Ok(1500), Ok(7000)]);
        assert_eq!([ms("2m"), ms("1min"), ms("1h")], [Ok(120_000), Ok(60_000), Ok(3_600_000)]);
        assert_eq!(ms("18446744073709551615h"), Ok(LONGEST as u128 * 1000));
        for (text, words) in [
            ("0s", "not more than 0"),
            ("-1s", "not more than 0"),
            ("1e-12", "not more than 0"),
            ("s", "is not a time"),
            ("", "is not a time"),
            ("5 s", "is not a time"),
            ("NaN", "is not a time"),
            ("inf", "is not a time"),
            ("1d", "unknown unit d"),
        ] {
            assert!(time(text).unwrap_err().contains(words), "{text}");
        }
    }
}
