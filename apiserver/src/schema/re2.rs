//! Regular expressions as Go reads them, translated for the crate `regex`, which descends from the same library and differs in details.
//!
//! ```text
//! \Qa.b\E        a\.b
//! a{,3}          a\{,3\}            no number: a literal
//! [\w&&[]        [0-9A-Za-z_\&\&\[] no operations on classes; \w, \d, \s and \b are ASCII
//! (?P<n>a)       (?:a)              nobody asks for groups
//! \1 a** (?x)a   refused
//! ```
//!
//! The functions follow `regexp/syntax/parse.go`, also in their errors.

use regex::bytes::Regex;

/// Why Go refuses an expression, and the part of it.
type Problem<'a> = (&'static str, &'a str);

const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];
/// Most repetitions of one part.
const REPEAT_MAX: usize = 1000;

/// Compiles an expression that Go's `regexp.Compile` takes. The error is Go's.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    let error = |(code, part)| format!("error parsing regexp: {code}: `{part}`");
    let translated = translate(pattern).map_err(error)?;
    Regex::new(&translated).map_err(|_| error(("expression too large", pattern)))
}

fn translate(pattern: &str) -> Result<String, Problem<'_>> {
    let (mut out, mut rest, mut depth) = (String::new(), pattern, 0_usize);
    // Where the last repetition begins, if nothing is between, and whether something can be repeated.
    let (mut repetition, mut repeatable) = (None, false);
    while let Some(next) = rest.chars().next() {
        let (before, last) = (rest, repetition.take());
        let after = &rest[next.len_utf8()..];
        rest = after;
        let mut repeated = matches!(next, '*' | '+' | '?').then_some((next.to_string(), after));
        match next {
            '(' => {
                let (group, after) = group(before)?;
                depth += usize::from(group.ends_with(':'));
                repeatable &= !group.ends_with(':');
                out += &group;
                rest = after;
                continue;
            }
            ')' => {
                depth = depth.checked_sub(1).ok_or(("unexpected )", pattern))?;
                out.push(')');
            }
            '|' => {
                out.push('|');
                repeatable = false;
                continue;
            }
            '^' | '$' | '.' => out.push(next),
            '[' => rest = class(before, &mut out)?,
            '*' | '+' | '?' => {}
            '{' => {
                repeated = count(before)?;
                if repeated.is_none() {
                    out += "\\{";
                }
            }
            '\\' => rest = backslash(before, &mut out)?,
            _ => literal(next, &mut out),
        }
        if let Some((operator, after)) = repeated {
            let lazy = after.starts_with('?');
            rest = &after[usize::from(lazy)..];
            if let Some(last) = last {
                return Err(("invalid nested repetition operator", between(last, rest)));
            }
            if !repeatable {
                return Err(("missing argument to repetition operator", between(before, rest)));
            }
            out += &operator;
            out += if lazy { "?" } else { "" };
            repetition = Some(before);
        }
        repeatable = true;
    }
    if depth > 0 { Err(("missing closing )", pattern)) } else { Ok(out) }
}

/// The part of a text before its end.
fn between<'a>(text: &'a str, end: &str) -> &'a str {
    &text[..text.len() - end.len()]
}

fn literal(char: char, out: &mut String) {
    out.push_str(&regex::escape(char.encode_utf8(&mut [0; 4])));
}

/// `(`, `(?P<name>`, `(?i:` or `(?i)`, which opens no group.
fn group(text: &str) -> Result<(String, &str), Problem<'_>> {
    let Some(inner) = text.strip_prefix("(?") else { return Ok(("(?:".to_owned(), &text[1..])) };
    if let Some(name) = inner.strip_prefix("P<").or_else(|| inner.strip_prefix('<')) {
        let (name, after) = name.split_once('>').ok_or(("invalid named capture", text))?;
        if name.is_empty() || !name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
            return Err(("invalid named capture", between(text, after)));
        }
        return Ok(("(?:".to_owned(), after));
    }
    let end = inner.find(|char| !"imsU-".contains(char));
    let at = end.unwrap_or(inner.len());
    let (flags, after) = (&inner[..at], &inner[at..]);
    let closing = after.chars().next();
    let after = closing.map_or(after, |char| &after[char.len_utf8()..]);
    let (_, off) = flags.split_once('-').unwrap_or((flags, "none"));
    match closing {
        Some(':' | ')') if !off.is_empty() && !off.contains('-') => {}
        _ => return Err(("invalid or unsupported Perl syntax", between(text, after))),
    }
    match (closing, flags) {
        (Some(')'), "") => Ok((String::new(), after)),
        _ => Ok((between(text, after).to_owned(), after)),
    }
}

/// `{2}`, `{2,}` or `{2,3}`.
fn count(text: &str) -> Result<Option<(String, &str)>, Problem<'_>> {
    let Some((inner, after)) = text[1..].split_once('}') else { return Ok(None) };
    let (least, most) = inner.split_once(',').unwrap_or((inner, inner));
    let is_number = |text: &str| {
        text == "0"
            || !text.starts_with('0') && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !is_number(least) || !(most.is_empty() || is_number(most)) {
        return Ok(None);
    }
    let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number <= REPEAT_MAX);
    let valid =
        number(least).is_some_and(|least| most.is_empty() || number(most).is_some_and(|most| least <= most));
    if !valid {
        return Err(("invalid repeat count", between(text, after)));
    }
    Ok(Some((between(text, after).to_owned(), after)))
}

/// What begins with a backslash, outside of a class.
fn backslash<'a>(text: &'a str, out: &mut String) -> Result<&'a str, Problem<'a>> {
    match text.as_bytes().get(1) {
        Some(b'Q') => {
            let (quoted, after) = text[2..].split_once("\\E").unwrap_or((&text[2..], ""));
            out.push_str(&regex::escape(quoted));
            return Ok(after);
        }
        Some(b'A' | b'z') => out.push_str(&text[..2]),
        Some(b'b' | b'B') => out.push_str(&format!("(?-u:{})", &text[..2])),
        _ => {
            if let Some((class, after)) = escaped_class(text)? {
                out.push_str(&class);
                return Ok(after);
            }
            let (char, after) = escape(text)?;
            literal(char, out);
            return Ok(after);
        }
    }
    Ok(&text[2..])
}

/// `\d`, `\pL` or `\p{Greek}`.
fn escaped_class(text: &str) -> Result<Option<(String, &str)>, Problem<'_>> {
    let class = match text.as_bytes().get(1) {
        Some(b'd') => "[0-9]",
        Some(b'D') => "[^0-9]",
        Some(b's') => r"[\t\n\f\r ]",
        Some(b'S') => r"[^\t\n\f\r ]",
        Some(b'w') => "[0-9A-Za-z_]",
        Some(b'W') => "[^0-9A-Za-z_]",
        Some(b'p' | b'P') => return unicode_class(text).map(Some),
        _ => return Ok(None),
    };
    Ok(Some((class.to_owned(), &text[2..])))
}

fn unicode_class(text: &str) -> Result<(String, &str), Problem<'_>> {
    let (name, after) = match text[2..].strip_prefix('{') {
        Some(braced) => braced.split_once('}').ok_or(("invalid character class range", text))?,
        None => text[2..].split_at(text[2..].chars().next().map_or(0, char::len_utf8)),
    };
    let plain = name.strip_prefix('^').unwrap_or(name);
    let negated = (plain.len() < name.len()) != text.starts_with("\\P");
    let letter = if negated { 'P' } else { 'p' };
    // The crate also knows properties, which Go does not.
    let categories = ["gc", "sc"].map(|table| format!("\\{letter}{{{table}={plain}}}"));
    let known = categories.into_iter().find(|class| !plain.is_empty() && Regex::new(class).is_ok());
    let known = known.or_else(|| (plain == "Any").then(|| format!("\\{letter}{{Any}}")));
    Ok((known.ok_or(("invalid character class range", between(text, after)))?, after))
}

/// A character after a backslash.
fn escape(text: &str) -> Result<(char, &str), Problem<'_>> {
    let inner = &text[1..];
    let Some(next) = inner.chars().next() else {
        return Err(("trailing backslash at end of expression", ""));
    };
    let after = &inner[next.len_utf8()..];
    let refused = |after| Err(("invalid escape sequence", between(text, after)));
    let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
    let char = match next {
        'a' => '\x07',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        // One digit alone would be a reference to a group.
        '0'..='7' if next == '0' || after.starts_with(|char| ('0'..='7').contains(&char)) => {
            let digits = inner.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            return number(&inner[..digits], 8).map_or(refused(after), |char| Ok((char, &inner[digits..])));
        }
        'x' => {
            let (digits, end) = match after.strip_prefix('{') {
                // Go stops at the first other character.
                Some(braced) => {
                    braced.split_once(|char: char| !char.is_ascii_hexdigit()).unwrap_or((braced, ""))
                }
                None => after.split_at_checked(2).unwrap_or((after, "")),
            };
            let is_closed = !after.starts_with('{') || between(after, end).ends_with('}');
            let is_hex = is_closed && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            return number(digits, 16).filter(|_| is_hex).map_or(refused(end), |char| Ok((char, end)));
        }
        _ if next.is_ascii() && !next.is_ascii_alphanumeric() => next,
        _ => return refused(after),
    };
    Ok((char, after))
}

/// `[a-z[:digit:]\w]`. Returns the text behind it.
fn class<'a>(text: &'a str, out: &mut String) -> Result<&'a str, Problem<'a>> {
    let mut rest = &text[1..];
    out.push('[');
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut is_first = true;
    while !rest.starts_with(']') || is_first {
        is_first = false;
        if let Some((name, after)) = rest.strip_prefix("[:").and_then(|named| named.split_once(":]")) {
            if !CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return Err(("invalid character class range", between(rest, after)));
            }
            out.push_str(between(rest, after));
            rest = after;
            continue;
        }
        if rest.starts_with('\\')
            && let Some((class, after)) = escaped_class(rest)?
        {
            out.push_str(&class);
            rest = after;
            continue;
        }
        let begin = rest;
        let (low, after) = class_char(rest, text)?;
        literal(low, out);
        rest = after;
        if let Some(after) = rest.strip_prefix('-')
            && !after.is_empty()
            && !after.starts_with(']')
        {
            let (high, after) = class_char(after, text)?;
            if high < low {
                return Err(("invalid character class range", between(begin, after)));
            }
            out.push('-');
            literal(high, out);
            rest = after;
        }
    }
    out.push(']');
    Ok(&rest[1..])
}

fn class_char<'a>(text: &'a str, class: &'a str) -> Result<(char, &'a str), Problem<'a>> {
    match text.chars().next() {
        None => Err(("missing closing ]", class)),
        Some('\\') => escape(text),
        Some(char) => Ok((char, &text[char.len_utf8()..])),
    }
}
