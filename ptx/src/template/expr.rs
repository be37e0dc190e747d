//! Expressions of the template language: integer sums of products, and comparisons of integers or strings.

/// Resolves a name to its text.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Whether `text` is a single name.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The value of an integer expression over `+`, `-` and `*` (which binds tighter).
pub(super) fn integer(text: &str, lookup: Lookup<'_>) -> Result<u64, String> {
    let mut total = 0u64;
    let mut negative = false;
    let mut rest = text;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let mut product = 1u64;
        for factor in rest[..end].split('*') {
            let value = atom(factor.trim(), lookup)?;
            product = product.checked_mul(value).ok_or_else(|| format!("{text} overflows"))?;
        }
        let sum = if negative { total.checked_sub(product) } else { total.checked_add(product) };
        total = sum.ok_or_else(|| format!("{text} is negative or overflows"))?;
        if end == rest.len() {
            return Ok(total);
        }
        negative = rest.as_bytes()[end] == b'-';
        rest = &rest[end + 1..];
    }
}

fn atom(text: &str, lookup: Lookup<'_>) -> Result<u64, String> {
    let value = if is_name(text) {
        lookup(text).ok_or_else(|| format!("unknown name {text}"))?
    } else {
        text.to_owned()
    };
    value.parse().map_err(|_| format!("expected an integer, found {value:?}"))
}

/// The truth of a condition: comparisons joined by `&&` and `||` (which binds weaker).
///
/// Every operand is looked up even when the result is already known, so that a misspelt name never hides.
pub(super) fn condition(text: &str, lookup: Lookup<'_>) -> Result<bool, String> {
    let mut any = false;
    for alternative in text.split("||") {
        let mut all = true;
        for comparison in alternative.split("&&") {
            all &= compare(comparison.trim(), lookup)?;
        }
        any |= all;
    }
    Ok(any)
}

fn compare(text: &str, lookup: Lookup<'_>) -> Result<bool, String> {
    for operator in ["==", "!=", "<=", ">=", "<", ">"] {
        let Some((left, right)) = text.split_once(operator) else { continue };
        let (left, right) = (operand(left.trim(), lookup)?, operand(right.trim(), lookup)?);
        if matches!(operator, "==" | "!=") {
            return Ok((left == right) == (operator == "=="));
        }
        let number =
            |s: &str| s.parse::<u64>().map_err(|_| format!("{s:?} cannot be ordered: not an integer"));
        let (left, right) = (number(&left)?, number(&right)?);
        return Ok(match operator {
            "<=" => left <= right,
            ">=" => left >= right,
            "<" => left < right,
            _ => left > right,
        });
    }
    Err(format!("expected a comparison, found {text:?}"))
}

fn operand(text: &str, lookup: Lookup<'_>) -> Result<String, String> {
    if let Some(quoted) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Ok(quoted.to_owned());
    }
    if is_name(text) {
        return lookup(text).ok_or_else(|| format!("unknown name {text}"));
    }
    integer(text, lookup).map(|value| value.to_string())
}
