//! Loads pages in a real browser and checks that they fit a phone and a desktop; returns its console messages.

#![expect(clippy::panic, reason = "a check that can't run should stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fails unless the page is as wide as its window on a phone and a desktop, shows `words`, and its console is silent.
pub(crate) fn fits(page: &Path, words: &str) {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(page).unwrap();
    // A canary: a page that is too wide must be found to be.
    let wide = text.replace("<main>", "<main><div style=\"width: 1500px\">wide</div>");
    for (name, inner, fits) in [("real", &text, true), ("canary", &wide, false)] {
        let frames = dir.path().join(format!("{name}.html"));
        fs::write(&frames, framed(inner, &[360, 1280])).unwrap();
        let (document, console) = browse(&frames);
        for width in [360, 1280] {
            let note = format!("OVER {width}=");
            let over = document.split_once(&format!("<p>{note}")).map(|(_, rest)| rest);
            let over = over.and_then(|rest| rest.split_once('<')).map(|(over, _)| over);
            let over: i64 =
                over.unwrap_or_else(|| panic!("no note for {width}: {console}")).parse().unwrap();
            assert_eq!(over == 0, fits, "{name}: {over} px too wide at {width}");
        }
        assert!(!console.contains("CONSOLE"), "{console}");
    }
    let (document, console) = browse(page);
    assert!(document.contains(words), "the page is empty: {document}");
    assert!(!console.contains("CONSOLE"), "{console}");
}

/// Chromium, or the message that says how to get it.
fn browser() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    found.into_iter().find(|file| file.is_file()).expect(
        "the page is checked in a browser, and there is no Chromium: apt-get install chromium",
    )
}

/// The document after its scripts have run, and the browser's console messages.
fn browse(page: &Path) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A page that shows `inner` in a frame of each width and writes down by how much it is too wide.
fn framed(inner: &str, widths: &[u32]) -> String {
    let escaped = inner.replace('&', "&amp;").replace('"', "&quot;");
    let frames: Vec<String> = widths
        .iter()
        .map(|width| format!("<iframe width={width} height=800 srcdoc=\"{escaped}\"></iframe>"))
        .collect();
    let script = "onload = () => { for (const frame of document.querySelectorAll('iframe')) { \
                  const page = frame.contentDocument.documentElement; const note = document.createElement('p'); \
                  note.textContent = 'OVER ' + frame.width + '=' + (page.scrollWidth - page.clientWidth); \
                  document.body.append(note); } }";
    format!("<!doctype html><body>{}<script>{script}</script>", frames.concat())
}
