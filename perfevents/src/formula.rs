//! Formulas of metrics: parsed once with the data, evaluated at every tick.
//!
//! ```text
//! formula  = sum
//! sum      = product { ("+" | "-") product }
//! product  = factor { ("*" | "/") factor }
//! factor   = "-" factor | number | name | function "(" sum { "," sum } ")" | "(" sum ")"
//! function = "max" | "min" (two or more arguments) | "ratio" (two)
//! name     = letter { letter | digit | "_" }
//! number   = as in "64", "0.5", "2.3e-10"
//! ```
//!
//! `ratio(a, b)` is `a / b`, and 0 when both are 0. A formula that otherwise divides by 0, or uses
//! a name without a value, has no value.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};
use winnow::{
    Parser, Result as Parsed,
    ascii::{digit1, multispace0},
    combinator::{Infix, Prefix, alt, delimited, dispatch, expression, fail, opt, separated},
    token::{any, one_of, take_while},
};

/// Limits for formulas of users, so that parsing them does not exhaust the stack.
const MAX_LENGTH: usize = 1000;
/// Each parenthesis and minus sign nests a few calls.
const MAX_NESTING: usize = 100;

/// A parsed formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    text: String,
    root: Node,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Number(f64),
    Name(String),
    Negative(Box<Node>),
    Add(Box<Node>, Box<Node>),
    Subtract(Box<Node>, Box<Node>),
    Multiply(Box<Node>, Box<Node>),
    Divide(Box<Node>, Box<Node>),
    Call(Function, Vec<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Max,
    Min,
    Ratio,
}

/// A text that is not a formula.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a formula: {reason}")]
pub struct FormulaError {
    text: String,
    reason: String,
}

impl FromStr for Formula {
    type Err = FormulaError;

    fn from_str(text: &str) -> Result<Self, FormulaError> {
        let error = |reason: String| FormulaError {
            text: text.chars().take(MAX_LENGTH).collect(),
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(error(format!("longer than {MAX_LENGTH} bytes")));
        }
        let nesting = text.matches(['(', '-']).count();
        if nesting > MAX_NESTING {
            return Err(error(format!(
                "more than {MAX_NESTING} parentheses and minus signs"
            )));
        }
        let root = delimited(multispace0, sum, multispace0)
            .parse(text)
            .map_err(|stuck| match text[stuck.offset()..].chars().next() {
                Some(_) => error(format!("unexpected {:?}", &text[stuck.offset()..])),
                None => error("unexpected end".to_owned()),
            })?;
        Ok(Self {
            text: text.to_owned(),
            root,
        })
    }
}

impl<'de> Deserialize<'de> for Formula {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Formula {
    /// Evaluates the formula with `value` as the value of each name. `None` when a name has none,
    /// and for a division by 0.
    pub fn evaluate(&self, value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        self.root.evaluate(&value).filter(|value| value.is_finite())
    }

    /// The names in the formula.
    pub fn names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        self.root.collect_names(&mut names);
        names
    }
}

impl Node {
    fn evaluate(&self, value: &impl Fn(&str) -> Option<f64>) -> Option<f64> {
        let of = |node: &Self| node.evaluate(value);
        Some(match self {
            Self::Number(number) => *number,
            Self::Name(name) => value(name)?,
            Self::Negative(node) => -of(node)?,
            Self::Add(a, b) => of(a)? + of(b)?,
            Self::Subtract(a, b) => of(a)? - of(b)?,
            Self::Multiply(a, b) => of(a)? * of(b)?,
            Self::Divide(a, b) => divide(of(a)?, of(b)?)?,
            Self::Call(function, arguments) => {
                let values: Vec<f64> = arguments.iter().map(of).collect::<Option<_>>()?;
                match (function, &*values) {
                    (Function::Ratio, &[a, b]) if a == 0.0 && b == 0.0 => 0.0,
                    (Function::Ratio, &[a, b]) => divide(a, b)?,
                    (Function::Max, values) => values.iter().copied().reduce(f64::max)?,
                    (Function::Min, values) => values.iter().copied().reduce(f64::min)?,
                    (Function::Ratio, _) => return None,
                }
            }
        })
    }

    fn collect_names<'a>(&'a self, names: &mut BTreeSet<&'a str>) {
        match self {
            Self::Number(_) => {}
            Self::Name(name) => {
                names.insert(name);
            }
            Self::Negative(node) => node.collect_names(names),
            Self::Add(a, b) | Self::Subtract(a, b) | Self::Multiply(a, b) | Self::Divide(a, b) => {
                a.collect_names(names);
                b.collect_names(names);
            }
            Self::Call(_, arguments) => {
                for argument in arguments {
                    argument.collect_names(names);
                }
            }
        }
    }
}

fn divide(a: f64, b: f64) -> Option<f64> {
    (b != 0.0).then_some(a / b)
}

fn sum(input: &mut &str) -> Parsed<Node> {
    macro_rules! both {
        ($power:literal, $make:path) => {
            Infix::Left($power, |_: &mut &str, a, b| {
                Ok($make(Box::new(a), Box::new(b)))
            })
        };
    }
    expression(delimited(multispace0, operand, multispace0))
        .prefix(delimited(
            multispace0,
            '-'.value(Prefix(3, |_: &mut &str, node| {
                Ok(Node::Negative(Box::new(node)))
            })),
            multispace0,
        ))
        .infix(dispatch! {any;
            '+' => both!(1, Node::Add),
            '-' => both!(1, Node::Subtract),
            '*' => both!(2, Node::Multiply),
            '/' => both!(2, Node::Divide),
            _ => fail,
        })
        .parse_next(input)
}

fn operand(input: &mut &str) -> Parsed<Node> {
    let group = delimited('(', sum, ')');
    alt((number.map(Node::Number), named, group)).parse_next(input)
}

fn number(input: &mut &str) -> Parsed<f64> {
    let exponent = (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1);
    (digit1, opt(('.', digit1)), opt(exponent))
        .take()
        .parse_to()
        .parse_next(input)
}

/// A name, or a function with its arguments.
fn named(input: &mut &str) -> Parsed<Node> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let name = (
        one_of(letter),
        take_while(0.., |c: char| c.is_ascii_alphanumeric() || c == '_'),
    )
        .take()
        .parse_next(input)?;
    let arguments: Option<Vec<Node>> =
        opt(delimited('(', separated(1.., sum, ','), ')')).parse_next(input)?;
    let Some(arguments) = arguments else {
        return Ok(Node::Name(name.to_owned()));
    };
    let function = match (name, arguments.len()) {
        ("max", 2..) => Function::Max,
        ("min", 2..) => Function::Min,
        ("ratio", 2) => Function::Ratio,
        _ => return fail.parse_next(input),
    };
    Ok(Node::Call(function, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<f64> {
        let formula: Formula = text.parse().unwrap_or_else(|error| panic!("{error}"));
        formula.evaluate(|name| match name {
            "a" => Some(6.0),
            "b_2" => Some(4.0),
            "zero" => Some(0.0),
            _ => None,
        })
    }

    #[test]
    fn arithmetic_follows_the_usual_precedence() {
        for (text, expected) in [
            ("1 + 2*3", 7.0),
            ("2*3 + 1", 7.0),
            ("10 - 4 - 3", 3.0),
            ("64/ 4 /2", 8.0),
            ("(1+2) * 3", 9.0),
            ("-a + 2", -4.0),
            ("--a", 6.0),
            ("2 * -a", -12.0),
            ("-a * b_2", -24.0),
            (" a/b_2 ", 1.5),
            ("2.5e-1*a", 1.5),
            ("max(a, b_2, 5) - min(a, b_2)", 2.0),
            ("ratio(a, b_2) + ratio(zero, zero)", 1.5),
            ("1 - a / (a + b_2)", 0.4),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn missing_values_and_division_by_zero_give_none() {
        for text in [
            "c",
            "a + c",
            "max(a, c)",
            "a/zero",
            "zero/zero",
            "ratio(a, zero)",
            "1e308*1e308",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
    }

    #[test]
    fn names_are_listed() {
        let formula: Formula = "64 * (r + w) / max(time, r)".parse().expect("valid");
        assert_eq!(
            formula.names().into_iter().collect::<Vec<_>>(),
            ["r", "time", "w"]
        );
    }

    #[test]
    fn malformed_formulas_are_rejected() {
        for text in [
            "",
            " ",
            "1 +",
            "* 2",
            "(1",
            "1)",
            "1 2",
            "a b",
            "a..b",
            "1.e",
            ".5",
            "f(1)",
            "max(1)",
            "ratio(1,2,3)",
            "max()",
            "a = 1",
            "a[0]",
            "a ^ 2",
            "0x10",
            "inf-",
            "é",
        ] {
            assert!(text.parse::<Formula>().is_err(), "{text:?}");
        }
        let error = "a + $".parse::<Formula>().expect_err("malformed");
        assert!(error.to_string().contains('$'), "{error}");
        assert!("1+".repeat(600).parse::<Formula>().is_err());
    }

    /// Neither deep nesting nor random text makes the parser panic.
    #[test]
    fn any_text_is_parsed_or_rejected() {
        let parentheses = |depth| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        let minuses = |depth| format!("{}1", "-".repeat(depth));
        for text in [parentheses(100), minuses(100), vec!["1"; 500].join("+")] {
            let formula: Formula = text.parse().expect("short enough");
            assert!(formula.evaluate(|_| None).is_some());
        }
        for text in [parentheses(101), minuses(101), "1".repeat(1001)] {
            assert!(text.parse::<Formula>().is_err());
        }
        let alphabet: Vec<char> = "ab1.e+-*/(), maxratio_2é".chars().collect();
        let mut state = 1_u64;
        for _ in 0..50_000 {
            let text: String = (0..state % 20)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    alphabet[(state >> 33) as usize % alphabet.len()]
                })
                .collect();
            state = state.wrapping_add(1);
            if let Ok(formula) = text.parse::<Formula>() {
                let _ = formula.evaluate(|_| Some(1.0));
            }
        }
    }
}
