//! Repetition in shader texts: loops and conditions over the constants of a launch, resolved before the driver sees them.
//!
//! Register tiles are scalars with names, and their size is a constant of the launch, so their code has to be written out.
//! Lines that begin with `//:` direct it:
//!
//! ```text
//! //: for m in 0..TILE_ROWS        repeats up to the `end`, with `$m`; `for m in 4, 1` lists values
//! //: if m < 2 && VEC4             `else` is optional; a condition is a number that is not 0
//! //: end
//! //: enable f16                   a line `enable f16;` in front of everything
//! ```
//!
//! In all other lines, `$m` and `${m * 4 + 1}` stand for numbers. Names are loop variables and the launch's constants.

use std::fmt::Write as _;

use super::shader::Constant;

/// A mistake in a text.
type Result<T> = std::result::Result<T, String>;

/// Resolves all directives of a text.
///
/// A mistake takes the place of the text: no WGSL compiler accepts it, and its report shows it.
pub(super) fn unroll(text: &str, constants: &[(&'static str, Constant)], out: &mut String) {
    if !text.contains("//:") && !text.contains('$') {
        out.push_str(text);
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    let number = |&(name, value): &(&'static str, Constant)| match value {
        Constant::U32(v) => (name, i64::from(v)),
        Constant::Bool(v) => (name, i64::from(v)),
    };
    let mut scope = constants.iter().map(number).collect();
    let mut at = 0;
    if let Err(mistake) = block(&lines, &mut at, &mut scope, Some(out), true) {
        let _ = writeln!(out, "#error line {}: {mistake}", at + 1);
    }
}

type Scope<'a> = Vec<(&'a str, i64)>;

/// Lines up to the directive that ends the block, which is returned; without `out` they are only skipped.
fn block<'a>(
    lines: &[&'a str],
    at: &mut usize,
    scope: &mut Scope<'a>,
    mut out: Option<&mut String>,
    outermost: bool,
) -> Result<&'a str> {
    while let Some(line) = lines.get(*at) {
        let Some(directive) = line.trim_start().strip_prefix("//:") else {
            if let Some(out) = out.as_deref_mut() {
                substitute(line, scope, out)?;
            }
            *at += 1;
            continue;
        };
        let directive = directive.trim();
        if matches!(directive, "end" | "else") {
            return if outermost { Err(format!("`{directive}` without a block")) } else { Ok(directive) };
        }
        *at += 1;
        if let Some(head) = directive.strip_prefix("for ") {
            repeat(head, lines, at, scope, out.as_deref_mut())?;
        } else if let Some(condition) = directive.strip_prefix("if ") {
            let holds = out.is_some() && value(condition, scope)? != 0;
            if block(lines, at, scope, out.as_deref_mut().filter(|_| holds), false)? == "else" {
                *at += 1;
                block(lines, at, scope, out.as_deref_mut().filter(|_| !holds), false)?;
            }
            *at += 1;
        } else if let Some(extension) = directive.strip_prefix("enable ") {
            if let Some(out) = out.as_deref_mut() {
                out.insert_str(0, &format!("enable {extension};\n"));
            }
        } else {
            return Err(format!("unknown directive `{directive}`"));
        }
    }
    if outermost { Ok("") } else { Err("a block has no `end`".to_owned()) }
}

fn repeat<'a>(
    head: &'a str,
    lines: &[&'a str],
    at: &mut usize,
    scope: &mut Scope<'a>,
    mut out: Option<&mut String>,
) -> Result<()> {
    let (name, values) = head.split_once(" in ").ok_or_else(|| format!("`for {head}` has no ` in `"))?;
    let first = *at;
    let values: Vec<i64> = match (out.is_some(), values.split_once("..")) {
        (false, _) => Vec::new(),
        (true, Some((from, to))) => (value(from, scope)?..value(to, scope)?).collect(),
        (true, None) => values.split(',').map(|text| value(text, scope)).collect::<Result<_>>()?,
    };
    for &number in &values {
        *at = first;
        scope.push((name.trim(), number));
        block(lines, at, scope, out.as_deref_mut(), false)?;
        scope.pop();
    }
    if values.is_empty() {
        block(lines, at, scope, None, false)?;
    }
    *at += 1;
    Ok(())
}

fn substitute(line: &str, scope: &Scope<'_>, out: &mut String) -> Result<()> {
    let mut rest = line;
    while let Some(start) = rest.find('$') {
        out.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        let (text, after) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(parts) => parts,
            None => rest.split_at(rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())),
        };
        let _ = write!(out, "{}", value(text, scope)?);
        rest = after;
    }
    out.push_str(rest);
    out.push('\n');
    Ok(())
}

/// Binary operators, those that bind least first.
const OPERATORS: [&[&str]; 5] = [&["||"], &["&&"], &["==", "!=", "<"], &["+", "-"], &["*", "/", "%"]];

fn value(text: &str, scope: &Scope<'_>) -> Result<i64> {
    let mut rest = text.trim();
    let number = binary(&mut rest, 0, scope)?;
    if rest.is_empty() { Ok(number) } else { Err(format!("`{rest}` is left of `{text}`")) }
}

fn binary(rest: &mut &str, level: usize, scope: &Scope<'_>) -> Result<i64> {
    let Some(operators) = OPERATORS.get(level) else {
        return operand(rest, scope);
    };
    let mut left = binary(rest, level + 1, scope)?;
    while let Some(operator) = operators.iter().find(|operator| rest.starts_with(**operator)) {
        *rest = rest[operator.len()..].trim_start();
        let right = binary(rest, level + 1, scope)?;
        let result = match *operator {
            "||" => Some(i64::from(left != 0 || right != 0)),
            "&&" => Some(i64::from(left != 0 && right != 0)),
            "==" => Some(i64::from(left == right)),
            "!=" => Some(i64::from(left != right)),
            "<" => Some(i64::from(left < right)),
            "+" => left.checked_add(right),
            "-" => left.checked_sub(right),
            "*" => left.checked_mul(right),
            "/" => left.checked_div(right),
            _ => left.checked_rem(right),
        };
        left = result.ok_or_else(|| format!("{left} {operator} {right} has no value"))?;
    }
    Ok(left)
}

fn operand(rest: &mut &str, scope: &Scope<'_>) -> Result<i64> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner.trim_start();
        let number = binary(rest, 0, scope)?;
        *rest = rest.strip_prefix(')').ok_or("`(` without `)`")?.trim_start();
        return Ok(number);
    }
    if let Some(inner) = rest.strip_prefix('!') {
        *rest = inner.trim_start();
        return Ok(i64::from(operand(rest, scope)? == 0));
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_start();
    if let Ok(number) = word.parse() {
        return Ok(number);
    }
    let known = scope.iter().rev().find(|(name, _)| *name == word);
    known.map(|(_, number)| *number).ok_or_else(|| format!("`{word}` is no constant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> String {
        let mut out = String::new();
        unroll(text, &[("N", Constant::U32(2)), ("VEC4", Constant::Bool(true))], &mut out);
        out
    }

    #[test]
    fn plain_text_stays() {
        assert_eq!(run("a\nb"), "a\nb");
        assert_eq!(run("// a comment: with a colon\nb"), "// a comment: with a colon\nb");
    }

    #[test]
    fn loops_and_conditions_nest() {
        let text = "x\n//: for m in 0..N\n  //: for q in 4, 1\n  a_$m[${m * q + 1}]\n  //: end\n//: end\ny";
        assert_eq!(run(text), "x\n  a_0[1]\n  a_0[1]\n  a_1[5]\n  a_1[2]\ny\n");
        let text = "//: if VEC4 && N == 2\n//: for m in 0..0\n$m\n//: end\nyes\n//: else\n//: if nothing\n//: else\n//: end\nno\n//: end\n$N";
        assert_eq!(run(text), "yes\n2\n");
        assert_eq!(run("//: if !VEC4 || N < 2\nyes\n//: else\n${(N + 2) * 3 % 5 - 7 / 2}_\n//: end"), "-1_\n");
    }

    #[test]
    fn extensions_stand_in_front() {
        assert_eq!(run("x\n//: if VEC4\n//: enable f16\n//: else\n//: enable f64\n//: end"), "enable f16;\nx\n");
    }

    #[test]
    fn mistakes_are_no_wgsl() {
        for text in ["//: end", "//: for m in 0..N\n", "$m", "//: if X\n//: end", "${1 / 0}", "${1 2}", "//: repeat"] {
            assert!(run(text).contains("#error line "), "{text}: {}", run(text));
        }
    }
}
