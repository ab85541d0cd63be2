//! The English of comments and Markdown, as tests: vague pronouns in place of the field's nouns, and heads of files.
//!
//! A pronoun from [`PRONOUNS`] at the place of a noun ("... is looked at" for "the scanned pages") makes a sentence hard to
//! follow for readers who know the field. Each has proper uses, so not the word but its rate is limited, by crate and for all
//! Markdown together. Code spans and code blocks do not count.
//!
//! A crate that exceeds a limit still is in a table with its present figure, which may only fall. Names of functions, and so
//! those of tests, have none of these words.
//! Not here: grammar, spelling, other names; comments after code on the same line.

#![expect(clippy::unwrap_used, reason = "a check that can't read the repository should stop")]

use std::collections::BTreeMap;

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/files.rs"]
mod files;

use files::{complain, markdown};

/// Words with a limited rate, besides "so" before "many" or "much".
const PRONOUNS: [&str; 5] = ["what", "who", "whose", "whoever", "whatever"];
/// Their number per 1,000 words of comments must be below this.
const RATE_MAX: usize = 3;
/// Crates at or above the limit, with their figures.
const RATCHET: [(&str, usize); 0] = [];

/// Words that begin no head of a file and no Markdown heading.
const OPENINGS: [&str; 4] = ["What", "Who", "Whose", "How"];
/// Crates with such heads, and their number.
const OPENED: [(&str, usize); 0] = [];

/// Lines of code from which a file needs a head of several lines.
const LONG: usize = 200;
/// Crates with longer files under one line of head, and their number.
const BRIEF: [(&str, usize); 0] = [];

/// Words and pronouns of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    words: usize,
    pronouns: usize,
}

impl Counts {
    fn of(prose: &str) -> Self {
        let is_letter = |c: char| c.is_ascii_alphabetic();
        let words = prose.split(|c: char| !is_letter(c) && c != '\'' && c != '-');
        let words = words.filter(|word| word.starts_with(is_letter)).count();
        let parts = prose.split(|c: char| !is_letter(c)).filter(|part| !part.is_empty());
        let parts: Vec<String> = parts.map(str::to_ascii_lowercase).collect();
        let pronouns = parts.iter().filter(|part| PRONOUNS.contains(&part.as_str())).count();
        let amounts = parts.windows(2).filter(|two| two[0] == "so" && is_amount(&two[1])).count();
        Self { words, pronouns: pronouns + amounts }
    }

    fn and(self, other: Self) -> Self {
        Self { words: self.words + other.words, pronouns: self.pronouns + other.pronouns }
    }

    fn rate(self) -> usize {
        self.pronouns * 1000 / self.words.max(1)
    }
}

fn is_amount(word: &str) -> bool {
    ["many", "much"].contains(&word)
}

/// The comments of Rust code, line by line; an empty line for each line of code.
fn comments(text: &str) -> String {
    let comment = |line: &str| -> String {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        comment.trim_start_matches(['/', '!']).to_owned() + "\n"
    };
    text.lines().map(comment).collect()
}

/// A text without code blocks and code spans. A span ends with its paragraph at the latest.
fn prose(text: &str) -> String {
    let mut is_block = false;
    let outside = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_fence && !is_block
    });
    let lines: Vec<&str> = outside.collect();
    let paragraphs = lines.split(|line| line.trim().is_empty());
    let plain = |paragraph: &[&str]| -> String {
        paragraph.join("\n").split('`').step_by(2).collect::<Vec<_>>().join(" ") + "\n\n"
    };
    paragraphs.map(plain).collect()
}

fn rust() -> Vec<(String, String)> {
    let all = files::below(&["crates", "artefacts"], "rs");
    assert!(all.len() > 500, "found only {} files: is the walk broken?", all.len());
    all
}

/// The crate of a file: `crates/NAME` or `artefacts/NAME`.
fn crate_of(name: &str) -> String {
    name.split('/').take(2).collect::<Vec<_>>().join("/")
}

/// Compares the number of findings of each crate with a table; crates not in it may have none.
fn ratchet(findings: &[(String, String)], table: &[(&str, usize)], name: &str) {
    let of = |of: &str| findings.iter().filter(|(found, _)| crate_of(found) == of).count();
    let limit = |of: &str| table.iter().find(|(listed, _)| *listed == of).map_or(0, |row| row.1);
    let mut messages = Vec::new();
    for (file, finding) in findings {
        let group = crate_of(file);
        let (found, limit) = (of(&group), limit(&group));
        if found > limit {
            messages.push(format!("{file}: {finding} ({found} in {group}, limit {limit})"));
        }
    }
    for (listed, figure) in table {
        if of(listed) == 0 {
            messages.push(format!("{listed}: 0, not {figure}: remove it from {name}"));
        }
    }
    complain(&messages);
}

/// Words that are limited, for messages.
fn named() -> String {
    format!("{}, so many, so much", PRONOUNS.join(", "))
}

#[test]
fn pronouns_are_rare_in_comments_and_markdown() {
    let mut groups = BTreeMap::<String, Counts>::new();
    let mut add = |group: String, counts: Counts| {
        let sum = groups.entry(group).or_default();
        *sum = sum.and(counts);
    };
    for (name, text) in rust() {
        add(crate_of(&name), Counts::of(&prose(&comments(&text))));
    }
    for (_, text) in markdown() {
        add("Markdown".into(), Counts::of(&prose(&text)));
    }
    let mut findings = Vec::new();
    for (group, counts) in &groups {
        let rate = counts.rate();
        let listed = RATCHET.iter().find(|(name, _)| name == group);
        let limit = listed.map_or(RATE_MAX - 1, |(_, figure)| *figure);
        if rate > limit {
            findings.push(format!(
                "{group}: {rate} of 1,000 words are one of ({}), limit {limit}: name the thing meant",
                named()
            ));
        } else if listed.is_some() && rate < RATE_MAX {
            findings.push(format!(
                "{group}: {rate} per 1,000 words, below {RATE_MAX}: remove it from RATCHET"
            ));
        }
    }
    complain(&findings);
}

/// Names of functions with a pronoun.
fn vague_functions(text: &str) -> Vec<&str> {
    let name = |line| {
        let (_, rest) =
            str::split_once(line, "fn ").filter(|(before, _)| !before.contains("//"))?;
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
    };
    let is_vague = |name: &&str| name.split('_').any(|word| PRONOUNS.contains(&word));
    text.lines().filter_map(name).filter(is_vague).collect()
}

#[test]
fn function_names_have_no_pronouns() {
    let mut messages = Vec::new();
    for (file, text) in rust() {
        let vague = vague_functions(&text).into_iter();
        messages.extend(vague.map(|name| format!("{file}: {name}: name the thing meant")));
    }
    complain(&messages);
    let text =
        "F what_is_read() {\n    pub(crate) F of_whose(who: u8) {\n// F who()\nF somewhat() {}\n";
    assert_eq!(vague_functions(&text.replace('F', "fn")), ["what_is_read", "of_whose"]);
}

/// The first word of a line.
fn opening(line: &str) -> &str {
    let line = line.trim_start();
    line.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default()
}

/// The lines of a file's head.
fn head(text: &str) -> Vec<&str> {
    let from = text.lines().skip_while(|line| !line.starts_with("//!"));
    from.map_while(|line| line.strip_prefix("//!")).collect()
}

/// The headings of Markdown.
fn headings(text: &str) -> Vec<String> {
    let heading = |line: &str| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then(|| title.to_owned())
    };
    prose(text).lines().filter_map(heading).collect()
}

#[test]
fn file_heads_and_headings_begin_with_a_noun() {
    let is_question = |line: &str| OPENINGS.contains(&opening(line));
    let say = |line: &str| format!("`{}` begins with one of {OPENINGS:?}; name it", line.trim());
    let mut findings = Vec::new();
    for (name, text) in rust() {
        let first = head(&text).first().copied().unwrap_or_default();
        if is_question(first) {
            findings.push((name, say(first)));
        }
    }
    for (name, text) in markdown() {
        let questions = headings(&text).into_iter().filter(|title| is_question(title));
        findings.extend(questions.map(|title| (name.clone(), say(&title))));
    }
    ratchet(&findings, &OPENED, "OPENED");
}

#[test]
fn long_files_have_heads_of_several_lines() {
    let mut findings = Vec::new();
    for (name, text) in rust().into_iter().filter(|(name, _)| !code::is_test(name)) {
        let lines = code::code(&text).lines().count();
        if lines >= LONG && head(&text).len() < 2 {
            let finding = format!(
                "{lines} lines of code under one line of head, limit {LONG}: state problem, approach and limits"
            );
            findings.push((name, finding));
        }
    }
    ratchet(&findings, &BRIEF, "BRIEF");
}

#[test]
fn comments_are_counted_without_code() {
    let text = "//! What is `what` here: so\n//! many.\nlet whose = 1;\n    /// Whoever's `a\nlet b = 1;\n// who\n";
    let counts = Counts::of(&prose(&comments(text)));
    assert_eq!(counts, Counts { words: 7, pronouns: 4 });
    assert_eq!(Counts { words: 999, pronouns: 3 }.rate(), 3);
    let blocks = "So much.\n```\nwhat\n```\nsomewhat so-so\n";
    assert_eq!(Counts::of(&prose(blocks)), Counts { words: 4, pronouns: 1 });
}

#[test]
fn heads_and_headings_are_found() {
    assert_eq!(head("// SPDX\n//! One.\n//!\n//! Two.\nuse a;\n//! No.\n"), [" One.", "", " Two."]);
    assert_eq!(headings("# A\n#[b]\n```\n# c\n```\n## How\n"), [" A", " How"]);
    assert_eq!(["opening", "Howard", "What's"].map(opening), ["opening", "Howard", "What"]);
}

#[test]
fn a_crate_may_not_exceed_its_figure_nor_stay_listed_without_need() {
    let found = |name: &str| vec![(format!("crates/{name}/src/lib.rs"), "bad".to_owned())];
    let fails = |name: &str, table: &[(&str, usize)]| {
        std::panic::catch_unwind(|| ratchet(&found(name), table, "T")).is_err()
    };
    assert!(!fails("one", &[("crates/one", 1)]) && !fails("one", &[("crates/one", 2)]));
    assert!(fails("two", &[]) && fails("two", &[("crates/one", 1), ("crates/two", 1)]));
}
