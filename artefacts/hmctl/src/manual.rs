//! Tests that docs/man/hmctl.8 matches the options. `UPDATE=1` rewrites it.

use std::path::Path;

use clap::CommandFactory as _;

#[test]
fn hmctl_manual_page_matches_the_command_line_options() {
    let mut page = Vec::new();
    let source = concat!("nearfar ", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(super::Args::command()).section("8");
    let man = man.manual("nearfar").source(source);
    man.render(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap()
        + ".SH EXAMPLES\n.TP\n\\fBhmctl \\-m 2 ./program\\fR\nhmalloc memory of program from node 2 only\n.TP\n\
           \\fBhmctl \\-w near,far ./program\\fR\nhmalloc memory of program from near and far memory, by the machine\\(aqs weights\n"
        + ".SH \"SEE ALSO\"\nhmalloc(3), nearfar(1), numactl(8), numa(7)\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man/hmctl.8");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "{} is out of date: UPDATE=1 cargo test -p nearfar-hmctl manual",
        path.display()
    );
}
