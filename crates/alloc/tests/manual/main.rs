//! Checks that the pages of section 3 in docs/man match the headers. `UPDATE=1` regenerates them.
//!
//! A header is the one definition: its first comment is the description, and the comment before a declaration describes
//! it. `header.rs` parses headers, `page.rs` formats pages.

mod header;
mod page;

use std::path::Path;

/// Pages with their headers, an example, and their SEE ALSO.
const PAGES: [(&str, &str, &str, &str); 3] = [
    (
        "nearfar",
        "crates/alloc/include/nearfar.h",
        "nf_kind_t far = nf_kind_create(\"far;limit=4g;spill=near\");
if (far == NF_NONE) { fprintf(stderr, \"%s\\n\", nf_error()); exit(1); }
char *cold = nf_malloc(far, 1 << 20);     /* far memory; near memory once 4 GiB are reserved */
cold = nf_realloc(NF_DEFAULT, cold, 2 << 20);   /* moves to plain memory, with its content */
nf_free(cold);",
        "nearfar(1), malloc(3), mbind(2), numa(7)",
    ),
    (
        "hmalloc",
        "artefacts/libhmalloc/include/hmalloc.h",
        "char *cold = hmalloc(1 << 20);            /* on node 2, if run by: hmctl -m 2 ./program */
hfree(cold);",
        "hmctl(8), nearfar(3), malloc(3), mbind(2)",
    ),
    (
        "smalloc",
        "artefacts/libsmalloc/include/smdk_opt_api.h",
        "char *cold = s_malloc(SMDK_MEM_EXMEM, 1 << 20);
s_free(cold);",
        "nearfar(3), malloc(3), mbind(2)",
    ),
];

#[test]
fn manual_pages_match_the_headers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, header, example, also) in PAGES {
        let read = header::read(&std::fs::read_to_string(root.join(header)).unwrap());
        let page = page::write(&read, name, header, (example, also));
        let path = root.join("docs/man").join(name).with_extension("3");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == page,
            "{} is out of date: UPDATE=1 cargo test -p nearfar-alloc --test manual",
            path.display()
        );
    }
}

#[test]
fn the_allocators_man_page_example_is_in_the_manual() {
    let manual = include_str!("../../../../docs/alloc.md");
    assert!(manual.contains(PAGES[0].2), "docs/alloc.md has another example");
}

#[test]
fn a_manual_page_documents_every_function_of_its_header() {
    let text = "/* few: a\n * header. Made of nothing.\n *\n * It has `two`.\n */\n\
        #ifndef F\n#define F\n#define TWO 2 /* a number */\n\
        /* Does it.\n *\n * Slowly. */\nint one(int a,\n        int b);\nint two(void);\n\n/* A pair. */\n\
        typedef struct pair {\n    /* Left, not right. */\n    int left;\n} pair;\n\
        typedef enum {\n  A = 0, /* first */\n  B = 1  /* last */\n} e;\n#endif\n";
    let read = header::read(text);
    assert_eq!(read.head, ["few: a header. Made of nothing.", "It has `two`."]);
    let codes: Vec<_> = read.items.iter().map(|item| item.code.join(" ")).collect();
    assert_eq!(codes, ["TWO", "int one(int a, int b); int two(void);", "struct pair", "enum e"]);
    assert_eq!(read.items[0].words, ["a number"]);
    assert_eq!(read.items[1].words, ["Does it.", "Slowly."]);
    assert_eq!(read.items[2].members[0].words, ["Left, not right."]);
    let last = &read.items[3].members[1];
    assert_eq!((last.code.join(" "), last.words.join(" ")), ("B = 1".into(), "last".into()));
    let page = page::write(&read, "few", "few.h", ("one(2);\n/* it's two */", "three(3)"));
    let has = |part: &str| assert!(page.contains(part), "no {part} in:\n{page}");
    has(".TH FEW 3");
    has("few, one, two \\- a header\n");
    has("also: one two\n");
    // A page with the name of a function is the page of that function.
    assert!(page::write(&read, "one", "few.h", ("", "")).contains("also: two\n"));
    has("It has \\fBtwo\\fR.");
    has("Slowly.");
    has("int left");
}
