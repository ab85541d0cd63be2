//! Words of a command line, quoted for a POSIX shell.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// The words, each quoted where necessary, joined by spaces.
#[must_use]
pub fn join(words: &[OsString]) -> String {
    words.iter().map(|word| quote(word.as_bytes())).collect::<Vec<_>>().join(" ")
}

/// One word. Control characters and bytes that are no UTF-8 become `$'\\NNN'` (octal), which bash, zsh and POSIX 2024 understand.
fn quote(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:,=+@%^".contains(byte);
    match std::str::from_utf8(word) {
        Ok(text) if !word.is_empty() && word.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let byte = |byte: &u8| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                _ => format!("\\{byte:03o}"),
            };
            format!("$'{}'", word.iter().map(byte).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        let words = ["-m", "4G", "a b", "it's", "", "{\"id\":1}", "a\nb"].map(OsString::from);
        let text = r#"-m 4G 'a b' 'it'\''s' '' '{"id":1}' $'a\012b'"#;
        assert_eq!(join(&words), text);
        assert_eq!(join(&[OsString::from_vec(vec![b'a', 0xff])]), r"$'a\377'");
    }

    #[test]
    fn a_shell_reads_back_the_same_words() {
        let words = ["it's", "a\n\tb\\", "$HOME `x` \"y\"", "*", "~", "#", "é\u{7f}"];
        let line = join(&words.map(OsString::from));
        let script = format!("printf '%s\\0' {line}");
        let Ok(output) = std::process::Command::new("bash").args(["-c", &script]).output() else {
            println!("SKIPPED: no bash");
            return;
        };
        let read: Vec<_> = output.stdout.split(|byte| *byte == 0).collect();
        let expected: Vec<_> = words.iter().map(|word| word.as_bytes()).chain([&b""[..]]).collect();
        assert_eq!(read, expected);
    }
}
