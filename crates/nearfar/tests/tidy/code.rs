//! The code of a file, as text: without comments, blank lines and tests.

/// Whether a file, by its path, is a test or a helper of tests.
pub(crate) fn is_test(name: &str) -> bool {
    let words = ["tests", "sample", "testkit"];
    words.iter().any(|word| name.split(['/', '.']).any(|part| part == *word))
}

/// The text without blank lines, comments and everything after the first test module.
pub(crate) fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").filter(|at| text[*at..].contains("mod tests {"));
    let lines = text[..end.unwrap_or(text.len())].lines();
    let plain = lines.map(|line| line.split("//").next().unwrap_or_default().trim_end());
    plain.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}
