//! `make install` and `make uninstall` (scripts/install), from the view of an administrator and of a C programmer.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where the programs are that this test was built with, and where `make library` puts the libraries.
fn built() -> (PathBuf, PathBuf) {
    let programs = Path::new(env!("CARGO_BIN_EXE_nearfar")).parent().unwrap();
    (programs.to_path_buf(), programs.with_file_name("abi"))
}

/// scripts/install with `variables`, as make runs it but for the programs.
fn script(what: &str, variables: &[(&str, &Path)]) -> Output {
    let (programs, libraries) = built();
    let mut command = Command::new(root().join("scripts/install"));
    for name in ["PREFIX", "DESTDIR", "BINDIR", "LIBDIR", "INCLUDEDIR", "DATADIR"] {
        command.env_remove(name);
    }
    command.arg(what).env("PROGRAMS", programs).env("LIBRARIES", libraries);
    command.envs(variables.iter().copied()).output().unwrap()
}

fn good(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn installed(variables: &[(&str, &Path)]) {
    good(script("install", variables));
}

/// All that is below a directory, without the directory's name.
fn below(dir: &Path) -> Vec<String> {
    let found = good(Command::new("find").arg(dir).args(["-printf", "%P\n"]).output().unwrap());
    found.lines().filter(|line| !line.is_empty()).map(str::to_string).collect()
}

/// The output of pkg-config for nearfar below `prefix`.
fn flags(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("nearfar").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    good(command.output().unwrap()).split_whitespace().map(str::to_string).collect()
}

#[test]
fn a_c_program_builds_against_the_installed_libraries_shared_and_static() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("opt");
    installed(&[("PREFIX", &prefix)]);
    let version = flags(&prefix, &["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    let source = root().join("artefacts/libnearfar/tests/example.c");
    for (name, with, linked) in [
        ("shared", &["--cflags", "--libs"][..], None),
        ("static", &["--static", "--cflags", "--libs"][..], Some("-static")),
    ] {
        let program = dir.path().join(name);
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source).args(linked);
        good(compile.args(flags(&prefix, with)).output().unwrap());
        let mut run = Command::new(&program);
        if linked.is_none() {
            run.env("LD_LIBRARY_PATH", prefix.join("lib"));
        }
        assert_eq!(good(run.output().unwrap()), "kept 1 0\n", "{name}");
    }
    // The program has recorded the name with the number of the interface alone, and finds the library by it.
    let needs = Command::new("readelf").arg("-d").arg(dir.path().join("shared")).output().unwrap();
    assert!(good(needs).contains("[libnearfar.so.0]"));
    let lib = prefix.join("lib");
    let target = |name: &str| fs::read_link(lib.join(name)).unwrap().display().to_string();
    assert_eq!(target("libnearfar.so"), "libnearfar.so.0");
    assert_eq!(target("libnearfar.so.0"), format!("libnearfar.so.{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn installed_programs_find_their_libraries() {
    let dir = tempfile::tempdir().unwrap();
    let of_machine = dir.path().join("lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    for lib in [dir.path().join("lib"), dir.path().join("lib64"), of_machine] {
        installed(&[("PREFIX", dir.path()), ("LIBDIR", &lib)]);
        let mut run = Command::new(dir.path().join("bin/nearfar"));
        run.args(["run", "--heap", "0", "--", "grep", "-o", "[^ ]*/libnearfar_preload.so$"]);
        let maps = run.arg("/proc/self/maps").env_remove("NEARFAR_PRELOAD").output().unwrap();
        let preload = lib.join("libnearfar_preload.so");
        assert!(good(maps).lines().all(|line| Path::new(line) == preload), "{}", lib.display());
        let pc = fs::read_to_string(lib.join("pkgconfig/nearfar.pc")).unwrap();
        let below = lib.strip_prefix(dir.path()).unwrap().display();
        assert!(pc.contains(&format!("libdir=${{prefix}}/{below}\n")), "{pc}");
        // Libraries that link libnearfar find it beside themselves, whatever the build's library path is.
        let mut ldd = Command::new("ldd");
        let needs =
            ldd.arg(lib.join("libhmalloc.so")).env_remove("LD_LIBRARY_PATH").output().unwrap();
        let beside = format!("{}/libnearfar.so.0", lib.display());
        assert!(good(needs).contains(&beside), "{beside}");
    }
}

#[test]
fn installation_below_destdir_does_not_contain_its_path() {
    let dir = tempfile::tempdir().unwrap();
    installed(&[("DESTDIR", dir.path()), ("PREFIX", Path::new("/usr"))]);
    let usr = dir.path().join("usr");
    for file in [
        "bin/nearfar",
        "bin/hmctl",
        "bin/nearfar-bench",
        "bin/nearfar-load",
        "lib/libnearfar.a",
        "lib/libhmalloc.so",
        "lib/libsmalloc.so",
        "lib/libsmalloc.a",
        "lib/nearfar/libnearfar_lab_plugin.so",
        "include/nearfar.h",
        "include/hmalloc.h",
        "include/smdk_opt_api.h",
        "include/smdk_opt_api.hpp",
        "share/man/man1/nearfar-run.1",
        "share/man/man1/nearfar-bench-tiering.1",
        "share/man/man3/nearfar.3",
        "share/man/man3/nf_malloc.3",
        "share/man/man3/hmmap.3",
        "share/man/man5/nearfar-machine.5",
        "share/man/man8/hmctl.8",
        "share/bash-completion/completions/nearfar",
        "share/doc/nearfar/README.md",
        "share/doc/nearfar/docs/install.md",
    ] {
        let of = fs::metadata(usr.join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
        let runs = file.starts_with("bin/") || file.ends_with(".so");
        assert_eq!(of.mode() & 0o777, if runs { 0o755 } else { 0o644 }, "{file}");
    }
    let pc = fs::read_to_string(usr.join("lib/pkgconfig/nearfar.pc")).unwrap();
    let list = fs::read_to_string(usr.join("lib/nearfar/installed")).unwrap();
    let place = dir.path().display().to_string();
    assert!(pc.starts_with("prefix=/usr\n") && !pc.contains(&place), "{pc}");
    assert!(list.contains("/usr/bin/nearfar\n") && !list.contains(&place), "{list}");
}

#[test]
fn groff_accepts_the_installed_pages() {
    let dir = tempfile::tempdir().unwrap();
    installed(&[("PREFIX", dir.path())]);
    let man = dir.path().join("share/man");
    let pages: Vec<_> = below(&man).into_iter().filter(|name| name.contains('.')).collect();
    assert!(pages.len() > 60, "{pages:?}");
    for page in pages {
        // Either it has something to say, or it names one that has.
        let text = fs::read_to_string(man.join(&page)).unwrap();
        let named = text.strip_prefix(".so ").map(|named| man.join(named.trim()));
        let text = named.map_or(text, |named| fs::read_to_string(named).unwrap());
        assert!(text.contains("\n.SH NAME\n"), "{page}: {text}");
        let mut groff = Command::new("groff");
        groff.args(["-s", "-man", "-Tutf8", "-ww", "-z"]).arg(&page).current_dir(&man);
        let output = groff.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{page}: {output:?}");
    }
}

#[test]
fn uninstall_removes_exactly_the_installed_files() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("DESTDIR", dir.path())];
    fs::create_dir_all(dir.path().join("usr/local/include")).unwrap();
    fs::write(dir.path().join("usr/local/include/other.h"), "").unwrap();
    let before = below(dir.path());
    installed(&variables);
    // Once more, over it, and with a file that this version has not got any more.
    let old = dir.path().join("usr/local/bin/nearfar-old");
    fs::write(&old, "").unwrap();
    let list = dir.path().join("usr/local/lib/nearfar/installed");
    fs::write(&list, fs::read_to_string(&list).unwrap() + "/usr/local/bin/nearfar-old\n").unwrap();
    installed(&variables);
    assert!(!old.exists() && dir.path().join("usr/local/bin/nearfar").exists());
    good(script("uninstall", &variables));
    assert_eq!(below(dir.path()), before);
    let again = script("uninstall", &variables);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing of nearfar's is known there"));
}

#[test]
fn missing_files_are_named_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    let refused = script("install", &[("DESTDIR", dir.path()), ("LIBRARIES", &empty)]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("empty/libnearfar.so; make build makes it"), "{said}");
    let relative = script("install", &[("DESTDIR", dir.path()), ("PREFIX", Path::new("here"))]);
    assert!(String::from_utf8_lossy(&relative.stderr).contains("here: PREFIX and its like"));
    assert_eq!(below(dir.path()), [""; 0]);
}
