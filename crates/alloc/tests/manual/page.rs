//! Formats a header as a manual page of section 3.

use roff::{Inline, Roff, bold, roman};

use crate::header::{Header, Item};

/// The page `name`, made from a header at `path`, with an example and pages to see.
pub(crate) fn write(
    header: &Header,
    name: &str,
    path: &str,
    (example, also): (&str, &str),
) -> String {
    let functions: Vec<&str> = header.items.iter().flat_map(Item::functions).collect();
    let (first, rest) =
        header.head.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    let short = first.split_once(": ").map_or(first, |(_, short)| short);
    let short = short.split(". ").next().unwrap_or_default().trim_end_matches('.');
    let file = path.rsplit('/').next().unwrap_or_default();

    let mut page = Roff::new();
    let version = concat!("nearfar ", env!("CARGO_PKG_VERSION"));
    page.control("TH", [name.to_uppercase().as_str(), "3", "", version, "nearfar"]);
    page.control("SH", ["NAME"]);
    let mut names = vec![name];
    names.extend(functions.iter().filter(|function| **function != name));
    // A plain minus, as mandoc and mandb expect it; see below.
    page.text([roman(format!("{} @ {short}", names.join(", ")))]);
    page.control("SH", ["SYNOPSIS"]);
    page.control("nf", []);
    page.text([bold(format!("#include <{file}>"))]);
    page.control("PP", []);
    for code in header.items.iter().filter(|item| item.functions().next().is_some()) {
        for line in &code.code {
            page.text([bold(line)]);
        }
    }
    page.control("fi", []);
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut page, rest);
    let is_function = |item: &&Item| item.functions().next().is_some();
    section(&mut page, "FUNCTIONS", header.items.iter().filter(is_function));
    section(
        &mut page,
        "TYPES AND CONSTANTS",
        header.items.iter().filter(|item| !is_function(item)),
    );
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    example.lines().for_each(|line| _ = page.text([roman(line)]));
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(also)]);
    let made = format!(
        ".\\\" Made from {path} (crates/alloc/tests/manual).\n.\\\" also: {}\n",
        names[1..].join(" ")
    );
    made + &page.to_roff().replacen(" @ ", " \\- ", 1)
}

fn section<'a>(page: &mut Roff, title: &str, items: impl Iterator<Item = &'a Item>) {
    let mut items = items.filter(|item| !item.words.is_empty()).peekable();
    if items.peek().is_none() {
        return;
    }
    page.control("SH", [title]);
    items.for_each(|item| entry(page, item));
}

fn entry(page: &mut Roff, item: &Item) {
    for (at, code) in item.code.iter().enumerate() {
        page.control(if at == 0 { "TP" } else { "TQ" }, []);
        page.text([bold(code.trim_end_matches(';'))]);
    }
    paragraphs(page, &item.words);
    if !item.members.is_empty() {
        page.control("RS", []);
        item.members.iter().for_each(|member| entry(page, member));
        page.control("RE", []);
    }
}

fn paragraphs(page: &mut Roff, words: &[String]) {
    for (at, paragraph) in words.iter().enumerate() {
        if at > 0 {
            page.control("IP", []);
        }
        // Names are between backticks.
        let parts = paragraph.split('`').enumerate();
        let parts = parts.map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) });
        page.text(parts.collect::<Vec<Inline>>());
    }
}
