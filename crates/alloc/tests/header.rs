//! Checks that `include/nearfar.h` matches `src/ffi.rs`, `src/ffi/` and libnearfar's functions for the cache.
//! `UPDATE=1` regenerates it.

use std::path::Path;

#[test]
fn the_c_header_matches_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_src(root.join("src/ffi.rs"))
        .with_src(root.join("src/ffi/replicated.rs"))
        .with_src(root.join("../../artefacts/libnearfar/src/cache.rs"))
        .with_src(root.join("../../artefacts/libnearfar/src/cache/items.rs"))
        .with_config(config);
    let mut text = Vec::new();
    made.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap().replace("# Safety", "The caller sees to it that:");
    let path = root.join("include/nearfar.h");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is out of date: UPDATE=1 cargo test -p nearfar-alloc --test header",
        path.display()
    );
}
