//! Removes passwords, tokens and keys from variables, kernel parameters and mount options.

/// Parts of names that indicate a secret.
const WORDS: [&str; 11] = [
    "TOKEN",
    "SECRET",
    "PASSW",
    "PASSPHRASE",
    "KEY",
    "JWT",
    "CRED",
    "COOKIE",
    "AUTH",
    "PRIVATE",
    "SIGNATURE",
];

/// Replaces a secret.
const HIDDEN: &str = "***";

/// Whether the name indicates a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// The text without the values of `name=value` whose name indicates a secret, and without
/// `user:password@` in addresses.
pub(super) fn hidden(text: &str) -> String {
    let separator = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
    text.split_inclusive(separator)
        .map(|word| hidden_word(word, separator))
        .collect()
}

fn hidden_word(word: &str, separator: impl Fn(char) -> bool) -> String {
    let bare = word.trim_end_matches(&separator);
    let end = &word[bare.len()..];
    if let Some((name, value)) = bare.split_once('=')
        && is_secret(name)
        && !value.is_empty()
    {
        return format!("{name}={HIDDEN}{end}");
    }
    // `https://user:password@server`, dracut's `iscsi:user:password@server`.
    for scheme in ["://", "iscsi:"] {
        if let Some((before, address)) = bare.split_once(scheme)
            && let Some((user, server)) = address.rsplit_once('@')
            && user.contains(':')
        {
            return format!("{before}{scheme}{HIDDEN}@{server}{end}");
        }
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_are_hidden() {
        for (text, shown) in [
            ("root=/dev/sda1 quiet", "root=/dev/sda1 quiet"),
            ("rd.iscsi.password=abc ro", "rd.iscsi.password=*** ro"),
            (
                "netroot=iscsi:me:abc@10.0.0.1::3260 ro",
                "netroot=iscsi:***@10.0.0.1::3260 ro",
            ),
            ("https://me:abc@srv/dav", "https://***@srv/dav"),
            ("rw,Secret=abc,user=me", "rw,Secret=***,user=me"),
            ("ALL,AWS_ACCESS_KEY_ID=x", "ALL,AWS_ACCESS_KEY_ID=***"),
            (
                "10.0.0.1@tcp:10.0.0.2@tcp:/scratch",
                "10.0.0.1@tcp:10.0.0.2@tcp:/scratch",
            ),
            ("me@srv:/home", "me@srv:/home"),
            ("", ""),
        ] {
            assert_eq!(hidden(text), shown);
        }
    }
}
