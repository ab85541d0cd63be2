//! Dialogues with a connection: lines that begin with `>` are sent, those that begin with `<` are the complete expected
//! replies.

mod admin;
mod classic;
mod limits;
mod memcached_fixes;
mod meta;
mod pipelines;
mod splits;

use super::testkit::Talk;

/// Runs a dialogue with `talk`.
#[track_caller]
fn with(talk: &mut Talk, dialogue: &str) {
    let (mut said, mut heard, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    let check = |said: &mut Vec<String>, heard: &mut Vec<u8>, expected: &mut Vec<u8>| {
        let (got, want) = (String::from_utf8_lossy(heard), String::from_utf8_lossy(expected));
        assert_eq!(got, want, "after {said:?}");
        said.clear();
        heard.clear();
        expected.clear();
    };
    for line in dialogue.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
        match (line.strip_prefix('>'), line.strip_prefix('<')) {
            (Some(line), _) => {
                if !expected.is_empty() {
                    check(&mut said, &mut heard, &mut expected);
                }
                let line = line.strip_prefix(' ').unwrap_or(line);
                heard.append(&mut talk.say(format!("{line}\r\n")));
                said.push(line.to_owned());
            }
            (_, Some(line)) => {
                expected.extend_from_slice(line.strip_prefix(' ').unwrap_or(line).as_bytes());
                expected.extend_from_slice(b"\r\n");
            }
            _ => panic!("neither said nor heard: {line}"),
        }
    }
    check(&mut said, &mut heard, &mut expected);
}

/// Runs a dialogue with a connection to an empty store.
#[track_caller]
fn dialogue(text: &str) -> Talk {
    let mut talk = Talk::default();
    with(&mut talk, text);
    talk
}

/// Sends a line, and returns the reply as text.
fn ask(talk: &mut Talk, line: &str) -> String {
    String::from_utf8_lossy(&talk.say(format!("{line}\r\n"))).into_owned()
}
