//! Events that a user requests, in the syntax of perf-list(1).
//!
//! ```text
//! request   = item { "," item }
//! item      = event | "{" event { "," event } "}"          events in braces are counted together
//! event     = name [ ":" modifiers ]                       cycles, FP_ARITH_INST_RETIRED.SCALAR_DOUBLE
//!           | "r" hexadecimal [ ":" modifiers ]            r1c7: a raw code of the core's PMU
//!           | pmu "/" term { "," term } "/" [ modifiers ]  cpu/event=0xc7,umask=0x1,name=SCALAR/
//! term      = field "=" number | "name=" text | alias      alias: a file of the PMU's events/ directory
//! modifiers = { "u" | "k" }                                only in user space, only in the kernel
//! ```

use std::str::FromStr;

use winnow::{
    Parser, Result as Parsed,
    ascii::hex_digit1,
    combinator::{alt, delimited, eof, opt, peek, preceded, separated, terminated},
    token::{one_of, take_while},
};

use crate::CORE_PMU;

/// No command line is longer; a file that is passed by mistake is.
const MAX_LENGTH: usize = 10_000;

/// Events; those of one element are counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request(pub Vec<Vec<Item>>);

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The name in `name=`, or else the text of the event.
    pub name: String,
    /// The PMU; `None` for an event of a table, whose name is the only term.
    pub pmu: Option<String>,
    /// Parts of the code.
    pub terms: Vec<Term>,
    /// Count in user space.
    pub user: bool,
    /// Count in the kernel.
    pub kernel: bool,
}

/// One part of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// A field of the PMU's `format/` directory, or `config` to `config3`.
    Field(String, u64),
    /// A file of its `events/` directory, or a field of one bit.
    Alias(String),
}

impl Request {
    /// Names of the events in order.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().flatten().map(|item| &*item.name).collect()
    }
}

/// A text that is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {reason}")]
pub struct RequestError {
    text: String,
    reason: String,
}

impl FromStr for Request {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let error = |reason: String| RequestError {
            text: text.chars().take(100).collect(),
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(error(format!("longer than {MAX_LENGTH} bytes")));
        }
        let mut items = separated(1.., item, ',');
        items.parse(text).map(Self).map_err(|stuck| {
            let rest: String = text[stuck.offset()..].chars().take(30).collect();
            error(if rest.is_empty() {
                "unexpected end".to_owned()
            } else {
                format!(
                    "no event at {rest:?}; events are names, r1c7, or cpu/event=0xc7,umask=0x1/"
                )
            })
        })
    }
}

fn item(input: &mut &str) -> Parsed<Vec<Item>> {
    alt((
        delimited('{', separated(1.., event, ','), '}'),
        event.map(|event| vec![event]),
    ))
    .parse_next(input)
}

fn event(input: &mut &str) -> Parsed<Item> {
    alt((of_pmu, raw, named)).parse_next(input)
}

/// `cpu/event=0xc7,umask=0x1,name=SCALAR/u`
fn of_pmu(input: &mut &str) -> Parsed<Item> {
    let terms = delimited('/', separated(1.., part, ','), '/');
    let ((pmu, parts, modifiers), text) = (word, terms, opt(preceded(opt(':'), modifiers)))
        .with_taken()
        .parse_next(input)?;
    let parts: Vec<Part> = parts;
    let name = parts.iter().find_map(|part| match part {
        Part::Name(name) => Some(name.clone()),
        Part::Code(_) => None,
    });
    let terms = parts.into_iter().filter_map(|part| match part {
        Part::Code(term) => Some(term),
        Part::Name(_) => None,
    });
    let (user, kernel) = modifiers.unwrap_or((true, true));
    Ok(Item {
        name: name.unwrap_or_else(|| text.to_owned()),
        pmu: Some(pmu.to_owned()),
        terms: terms.collect(),
        user,
        kernel,
    })
}

/// `r1c7`
fn raw(input: &mut &str) -> Parsed<Item> {
    let code = preceded('r', hex_digit1).try_map(|digits| u64::from_str_radix(digits, 16));
    let ((code, (user, kernel)), text) = (code, after_name).with_taken().parse_next(input)?;
    Ok(Item {
        name: text.to_owned(),
        pmu: Some(CORE_PMU.to_owned()),
        terms: vec![Term::Field("config".to_owned(), code)],
        user,
        kernel,
    })
}

/// `cycles:u`
fn named(input: &mut &str) -> Parsed<Item> {
    let ((name, (user, kernel)), text) = (word, after_name).with_taken().parse_next(input)?;
    Ok(Item {
        name: text.to_owned(),
        pmu: None,
        terms: vec![Term::Alias(name.to_owned())],
        user,
        kernel,
    })
}

fn after_name(input: &mut &str) -> Parsed<(bool, bool)> {
    let end = peek(alt((eof.void(), one_of([',', '}']).void())));
    let modifiers = opt(preceded(':', modifiers)).map(|given| given.unwrap_or((true, true)));
    terminated(modifiers, end).parse_next(input)
}

/// Whether user space and kernel are counted.
fn modifiers(input: &mut &str) -> Parsed<(bool, bool)> {
    take_while(1.., ['u', 'k'])
        .map(|modifiers: &str| (modifiers.contains('u'), modifiers.contains('k')))
        .parse_next(input)
}

/// A part between the slashes.
enum Part {
    Name(String),
    Code(Term),
}

fn part(input: &mut &str) -> Parsed<Part> {
    let text = take_while(1.., |c: char| !",/{}".contains(c) && !c.is_control());
    let name = preceded("name=", text).map(|name: &str| Part::Name(name.to_owned()));
    let field = (terminated(word, '='), number)
        .map(|(field, value)| Part::Code(Term::Field(field.to_owned(), value)));
    let alias = word.map(|alias| Part::Code(Term::Alias(alias.to_owned())));
    alt((name, field, alias)).parse_next(input)
}

fn number(input: &mut &str) -> Parsed<u64> {
    take_while(1.., |c: char| c.is_ascii_alphanumeric())
        .verify_map(crate::device::number)
        .parse_next(input)
}

fn word<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    take_while(1.., |c: char| {
        c.is_ascii_alphanumeric() || "_-.*".contains(c)
    })
    .parse_next(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: u64) -> Term {
        Term::Field(name.to_owned(), value)
    }

    #[test]
    fn events_have_the_syntax_of_perf() {
        let text = "cpu/event=0xc7,umask=0x1,name=X/,cycles:u,{r1c7,uncore_imc_0/cas_count_read/},cpu/cmask=3/k";
        let Request(groups) = text.parse().expect("valid");
        assert_eq!(groups.len(), 4);
        let [x] = &groups[0][..] else {
            panic!("{groups:?}")
        };
        assert_eq!((&x.name[..], x.pmu.as_deref()), ("X", Some("cpu")));
        assert_eq!(x.terms, [field("event", 0xc7), field("umask", 1)]);
        let cycles = &groups[1][0];
        assert_eq!((&cycles.name[..], &cycles.pmu), ("cycles:u", &None));
        assert_eq!((cycles.user, cycles.kernel), (true, false));
        let [raw, imc] = &groups[2][..] else {
            panic!("{groups:?}")
        };
        assert_eq!(
            (&raw.name[..], &raw.terms[..]),
            ("r1c7", &[field("config", 0x1c7)][..])
        );
        assert_eq!(imc.terms, [Term::Alias("cas_count_read".to_owned())]);
        assert_eq!(imc.name, "uncore_imc_0/cas_count_read/");
        assert_eq!((groups[3][0].user, groups[3][0].kernel), (false, true));
        // Names that start like a raw code.
        let Request(named) = "ref-cycles,rdpmc".parse().expect("valid");
        assert!(named.iter().flatten().all(|item| item.pmu.is_none()));
    }

    #[test]
    fn any_text_is_parsed_or_rejected() {
        let alphabet: Vec<char> = "cpu/event=0x1,r{}:uk name*_é".chars().collect();
        let mut state = 1_u64;
        for _ in 0..50_000 {
            let text: String = (0..state % 24)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    alphabet[(state >> 33) as usize % alphabet.len()]
                })
                .collect();
            state = state.wrapping_add(1);
            if let Ok(request) = text.parse::<Request>() {
                assert!(
                    request.names().iter().all(|name| !name.is_empty()),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        for bad in [
            "",
            ",",
            "cycles,",
            "cpu/",
            "cpu//",
            "cpu/event=/",
            "cpu/event=0xg/",
            "cpu/event=0x10000000000000000/",
            "{cycles",
            "cycles}",
            "cycles:x",
            "cycles:",
            "{}",
            "{{cycles}}",
            "a b",
            "cpu/event=1/u,",
            "\u{0}",
            "é",
        ] {
            assert!(bad.parse::<Request>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(20_000).parse::<Request>().is_err());
    }
}
