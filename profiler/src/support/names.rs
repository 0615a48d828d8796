//! Names that a user has given and that do not exist.

/// Most wrong letters in a name that is still taken for another one.
const MISTYPED: usize = 2;
/// Most names in a message.
const MOST: usize = 50;

/// The name that is most similar to a mistyped or shortened one. Two swapped letters count like one wrong
/// letter, and case does not count.
pub fn similar<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let length = given.chars().count();
    // Short names have fewer mistakes.
    let most = (length / 3).clamp(1, MISTYPED);
    let mistakes = |name: &str| {
        let distance = strsim::damerau_levenshtein(&name.to_lowercase(), &given);
        let is_mistyped = distance <= most && distance < name.chars().count();
        let is_shortened = length > 2 && name.to_lowercase().starts_with(&given);
        (is_mistyped || is_shortened).then_some(distance)
    };
    let similar = known.filter_map(|name| Some((mistakes(name)?, name)));
    Some(similar.min()?.1)
}

/// Existing names for a message, the one that is most similar to the given one first.
pub fn listed<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in known {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if let Some(first) = similar(given, names.iter().copied()) {
        names.retain(|name| *name != first);
        names.insert(0, first);
    }
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// ``unknown region `wxrk`; regions are work, io``.
pub fn unknown<'a>(what: &str, given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match &listed(given, known)[..] {
        "" => format!("unknown {what} `{given}`; there are no {what}s"),
        names => format!("unknown {what} `{given}`; {what}s are {names}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_come_first() {
        for (given, expected) in [
            ("wxrk", "unknown plot `wxrk`; plots are work, io, node"),
            ("Node", "unknown plot `Node`; plots are node, io, work"),
            (
                "nothing",
                "unknown plot `nothing`; plots are io, work, node",
            ),
            ("NOD", "unknown plot `NOD`; plots are node, io, work"),
            ("wor", "unknown plot `wor`; plots are work, io, node"),
            ("i", "unknown plot `i`; plots are io, work, node"),
            ("nx", "unknown plot `nx`; plots are io, work, node"),
            ("x", "unknown plot `x`; plots are io, work, node"),
        ] {
            let known = ["io", "work", "node", "io"];
            assert_eq!(unknown("plot", given, known), expected);
        }
        assert_eq!(
            unknown("job", "7", []),
            "unknown job `7`; there are no jobs"
        );
    }

    #[test]
    fn many_names_are_shortened() {
        let names: Vec<String> = (0..100).map(|number| format!("name{number}")).collect();
        let shown = listed("nxme77", names.iter().map(String::as_str));
        assert!(shown.starts_with("name77, name0, "), "{shown}");
        assert!(shown.ends_with(" and 50 more"), "{shown}");
    }
}
