//! Output shown in documents, and its comparison with that of the commands.

/// Documents with sessions in a guest that has near and far memory, in the order of their commands.
pub(crate) const IN_GUEST: [&str; 4] =
    ["README.md", "docs/probe.md", "docs/tutorial-redis.md", "docs/tutorial-cache.md"];

/// A command that takes minutes and boots a guest, with the same command for a saved result. `make
/// package-test` compares the session with `nearfar demo --lab --only bandwidth`.
pub(crate) const DEMO: (&str, &str) = ("nearfar demo", "nearfar demo --from demo/demo.json");

/// The contents of the document's blocks in this language.
pub(crate) fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&opening) {
        let (block, after) = after.split_once("```").unwrap();
        found.push(block);
        rest = after;
    }
    found
}

/// The commands of the text's `console` blocks, with the output shown.
pub(crate) fn sessions(text: &str) -> Vec<(String, String)> {
    let blocks = blocks(text, "console").into_iter().map(|block| block.replace("\\\n", " "));
    let sessions = |block: String| -> Vec<(String, String)> {
        let each = block.split("$ ").skip(1);
        each.map(|one| one.split_once('\n').unwrap()).map(|(a, b)| (a.into(), b.into())).collect()
    };
    blocks.flat_map(sessions).collect()
}

/// Words of a text.
fn words(text: &str) -> Vec<&str> {
    // Elements of XML are words, even if none of them begins a line.
    text.split_inclusive('>').flat_map(str::split_whitespace).collect()
}

/// Whether the output is the shown one, apart from breaks of lines and the parts left out (`...`).
pub(crate) fn matches(shown: &str, output: &str) -> bool {
    let parts: Vec<Vec<&str>> = shown.split("...").map(words).collect();
    let output = words(output);
    let mut at = 0;
    for (index, part) in parts.iter().enumerate() {
        let here = output[at..].windows(part.len().max(1)).position(|window| window == part);
        match here {
            _ if part.is_empty() => {}
            Some(0) => at += part.len(),
            Some(skipped) if index > 0 => at += skipped + part.len(),
            _ => return false,
        }
    }
    parts.last().is_none_or(Vec::is_empty) || at == output.len()
}
