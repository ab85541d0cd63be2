//! Clients that speak no protocol, and many clients at once.

use super::{AT_REST, Client, config, dial, item, serve, soon};
use std::net::TcpStream;

#[test]
fn garbage_input_is_an_error_and_does_no_harm() {
    let server = serve(config());
    let mut other = dial(&server);
    let mut client = dial(&server);
    client.ask(b"\x81\x00\x00\x05hello\xff\xfe\r\n", "ERROR\r\n");
    client.ask([b'\0'; 100].as_slice(), "");
    client.ask("\r\n", "ERROR\r\n");
    client.ask("mn\r\n", "MN\r\n");
    let mut http = dial(&server);
    http.say("GET /index.html HTTP/1.1\r\n");
    http.hears_end();
    let mut http = dial(&server);
    http.say("POST /set HTTP/1.1\r\n");
    http.hears_end();
    let mut binary = dial(&server);
    binary.ask(b"\x80\x0b\0\0", "ERROR this server speaks the text protocol only\r\n");
    binary.hears_end();
    let mut endless = dial(&server);
    endless.say([b'x'; 2048]);
    endless.hears_end();
    let mut gone = dial(&server);
    gone.say("set a 0 0 900000\r\nhalf");
    drop(gone);
    soon("they are gone", || other.figure("curr_connections") == 2);
    soon("and so is what they held", || other.figure("read_buf_bytes") <= AT_REST);
}

const KEYS: usize = 40;
const ROUNDS: usize = 300;

/// A value filled with bytes that identify its key.
fn owned(key: usize, round: usize) -> Vec<u8> {
    format!("<{key}:{round}>").repeat(1 + (key * 37 + round * 11) % 400).into_bytes()
}

/// Whether a value is whole and of this key.
fn is_of(key: usize, value: &[u8]) -> bool {
    let Some(end) = value.iter().position(|byte| *byte == b'>') else { return false };
    let word = &value[..=end];
    word.starts_with(format!("<{key}:").as_bytes())
        && value.len().is_multiple_of(word.len())
        && value.chunks(word.len()).all(|one| one == word)
}

/// Reads a key; whether it was there.
fn reads(client: &mut Client<TcpStream>, key: usize) -> bool {
    let answer = client.ask_until(&format!("get k{key}\r\n"), "END\r\n").into_bytes();
    if answer == b"END\r\n" {
        return false;
    }
    let start = answer.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let value = &answer[start..answer.len() - "\r\nEND\r\n".len()];
    assert!(is_of(key, value), "k{key}: {}", answer.escape_ascii());
    assert!(answer == item(&format!("k{key}"), value), "{}", answer.escape_ascii());
    true
}

#[test]
fn every_value_read_was_stored_under_its_key() {
    assert!(is_of(3, &owned(3, 7)) && !is_of(4, &owned(3, 7)) && !is_of(3, b"<3:7><3:8>"));
    let server = serve(config());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let mut client = dial(&server);
            scope.spawn(move || {
                let (mut found, mut random) = (0, thread);
                for round in 0..ROUNDS {
                    random =
                        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9);
                    let key = usize::try_from(random >> 33).unwrap() % KEYS;
                    match (random >> 29) % 4 {
                        0 => client.sets(&format!("k{key}"), &owned(key, round)),
                        1 => {
                            let line = format!("md k{key} q\r\nmn\r\n");
                            client.say(line);
                            let answer = client.ask_until("", "MN\r\n");
                            assert!(["MN\r\n", "NF\r\nMN\r\n"].contains(&answer.as_str()));
                        }
                        _ => found += usize::from(reads(&mut client, key)),
                    }
                }
                assert!(found > 0);
            });
        }
    });
    let mut client = dial(&server);
    assert_eq!(client.figure("curr_items"), {
        (0..KEYS).filter(|key| reads(&mut client, *key)).count() as u64
    });
}
