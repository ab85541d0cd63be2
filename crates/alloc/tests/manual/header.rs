//! Parses a header of this repository for its manual page: no C parser, but it knows the style of our headers.

/// A header.
#[derive(Debug)]
pub(crate) struct Header {
    /// Paragraphs of its first comment.
    pub(crate) head: Vec<String>,
    pub(crate) items: Vec<Item>,
}

/// Declarations that share one comment.
#[derive(Debug, Default)]
pub(crate) struct Item {
    /// Declarations, a line each.
    pub(crate) code: Vec<String>,
    /// Paragraphs of the comment.
    pub(crate) words: Vec<String>,
    /// Members of a struct or an enum.
    pub(crate) members: Vec<Item>,
}

impl Item {
    /// Names of functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = &str> {
        self.code.iter().filter_map(|code| {
            let before = code.split_once('(')?.0;
            before.rsplit([' ', '*']).next()
        })
    }
}

pub(crate) fn read(text: &str) -> Header {
    let (head, rest) = comment(text).unwrap_or_default();
    Header { head, items: items(rest, ';') }
}

/// Splits off a comment at the beginning: its paragraphs, and the rest of the text.
fn comment(text: &str) -> Option<(Vec<String>, &str)> {
    let (inner, rest) = text.strip_prefix("/*")?.split_once("*/")?;
    let lines = inner.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix('*').unwrap_or(line).trim()
    });
    let mut paragraphs = vec![String::new()];
    for line in lines {
        match paragraphs.last_mut() {
            Some(last) if !line.is_empty() => {
                last.push_str(if last.is_empty() { "" } else { " " });
                last.push_str(line);
            }
            _ => paragraphs.push(String::new()),
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    Some((paragraphs, rest))
}

/// Parses items, each followed by `end`.
fn items(mut text: &str, end: char) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let mut words = Vec::new();
    loop {
        let trimmed = text.trim_start();
        let gap = &text[..text.len() - trimmed.len()];
        text = trimmed;
        if text.is_empty() {
            return found;
        }
        if let Some((said, rest)) = comment(text) {
            match found.last_mut() {
                // A comment behind a declaration on the same line describes that declaration.
                Some(last) if !gap.contains('\n') && last.words.is_empty() => last.words = said,
                _ => words = said,
            }
            text = rest;
        } else if text.starts_with('#') || text.starts_with("//") || text.starts_with('}') {
            let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
            text = rest;
            // A comment behind it stays for the next iteration, on the same line.
            if let Some((name, value)) =
                line.strip_prefix("#define ").and_then(|it| it.split_once(' '))
            {
                let said = value.find("/*").and_then(|at| comment(&value[at..]));
                let words = said.map_or_else(|| std::mem::take(&mut words), |(said, _)| said);
                found.push(Item { code: vec![name.to_string()], words, members: Vec::new() });
            }
        } else if let Some(rest) = text.strip_prefix("extern \"C\" {") {
            text = rest;
        } else {
            let (item, rest) = declaration(text, end);
            text = rest;
            match found.last_mut() {
                // Declarations with nothing between them share a comment.
                Some(last)
                    if end == ';'
                        && words.is_empty()
                        && !gap.contains("\n\n")
                        && item.members.is_empty() =>
                {
                    last.code.extend(item.code);
                }
                _ => found.push(Item { words: std::mem::take(&mut words), ..item }),
            }
        }
    }
}

/// Splits off a declaration at the beginning: the item, and the rest of the text.
fn declaration(text: &str, end: char) -> (Item, &str) {
    // The last member of an enum is followed only by a comment.
    let at = text.find([end, '{', '/']).unwrap_or(text.len());
    if text[at..].starts_with('{') {
        let close = at + text[at..].find('}').unwrap_or(text.len() - at);
        let (name, rest) = text[close..].split_once(';').unwrap_or_default();
        let sort = text[..at].trim_start_matches("typedef ").split(' ').next();
        let sort = sort.unwrap_or_default();
        let members = items(&text[at + 1..close], if sort == "enum" { ',' } else { ';' });
        let code = vec![format!("{sort} {}", name.trim_start_matches('}').trim())];
        return (Item { code, words: Vec::new(), members }, rest);
    }
    let rest = text[at..].strip_prefix(end).unwrap_or(&text[at..]);
    let mut code = text[..at].split_whitespace().collect::<Vec<_>>().join(" ");
    if end == ';' {
        code.push(end);
    }
    (Item { code: vec![code], ..Item::default() }, rest)
}
