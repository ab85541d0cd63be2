//! Cases in which the preload library does nothing: programs with a malloc of their own, and processes with privileges
//! other than their caller's.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod common;
use common::{built, preloaded, text};

fn compile(source: &str, into: &Path, with: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-fno-builtin", "-o"]).arg(into).arg(path);
    let output = compile.args(with).output().unwrap();
    assert!(output.status.success(), "{source}: {}", text(&output.stderr));
}

/// The stdout and stderr of a program that succeeded.
fn said(output: &Output) -> (String, String) {
    assert!(output.status.success(), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_program_with_a_malloc_of_its_own_is_never_given_memory_of_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("own");
    // With a position-independent executable, and with fixed addresses.
    for how in ["-pie", "-no-pie"] {
        let flags = if how == "-pie" { ["-fPIE", "-pie"] } else { ["-fno-pie", "-no-pie"] };
        compile("own.c", &program, &["-rdynamic", flags[0], flags[1]]);
        let run = |conf: &str| said(&preloaded(conf, Command::new(&program)).output().unwrap());
        assert_eq!(run(""), ("0 foreign, mappings plain\n".into(), String::new()), "{how}");
        assert_eq!(run("heap=default").1, "", "{how}");
        let (out, complaint) = run("heap=0");
        assert_eq!(out, "0 foreign, mappings placed\n", "{how}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains("a malloc of its own"), "{complaint}");
        assert!(complaint.contains("its anonymous mappings of 1048576 bytes"), "{complaint}");
        let (out, complaint) = run("heap=0 mmap=off");
        assert_eq!(out, "0 foreign, mappings plain\n", "{how}");
        assert!(complaint.contains("nor are its mappings"), "{complaint}");
        let file = dir.path().join("report");
        assert!(run(&format!("report={}", file.display())).1.is_empty());
        assert!(run("nonsense").1.contains("`nonsense`"));
    }
}

#[test]
fn a_program_that_uses_the_librarys_malloc_gets_no_warning() {
    for program in ["true", "bash", "perl", "python3"] {
        let mut command = preloaded("heap=0", Command::new(program));
        let output = command.arg(if program == "true" { "-" } else { "--version" }).output();
        assert_eq!(said(&output.unwrap()).1, "", "{program}");
    }
}

#[test]
fn rustc_which_exports_jemalloc_runs() {
    let root = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let rustc = Path::new(text(&root.stdout).trim()).join("bin/rustc");
    let (out, complaint) =
        said(&preloaded("heap=0", Command::new(rustc)).arg("-V").output().unwrap());
    assert!(out.starts_with("rustc "), "{out}");
    // Some builds of rustc do not have an allocator of their own.
    assert!(complaint.lines().count() <= 1, "{complaint}");
}

#[test]
fn report_files_are_private_and_links_and_fifos_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("report");
    let run = || {
        let conf = format!("heap=0 report={}", place.display());
        said(&preloaded(&conf, Command::new("true")).output().unwrap()).1
    };
    assert_eq!(run(), "");
    assert_eq!(fs::metadata(&place).unwrap().mode() & 0o7777, 0o600);
    // A longer existing file leaves no trailing content.
    fs::write(&place, "x".repeat(100_000)).unwrap();
    assert_eq!(run(), "");
    assert!(fs::read_to_string(&place).unwrap().ends_with("}\n"));
    fs::remove_file(&place).unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "as it was").unwrap();
    symlink(&victim, &place).unwrap();
    assert!(run().contains("report="), "a link");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
    fs::remove_file(&place).unwrap();
    assert!(Command::new("mkfifo").arg(&place).status().unwrap().success());
    assert!(run().contains("report="), "a FIFO that nobody reads");
}

/// A directory that any user may read, where set-user-ID programs have effect.
fn public_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn a_set_user_id_program_reads_no_variable_of_its_caller() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "SKIPPED: only root can make a set-user-ID program of root's and start it as another user"
        );
        return;
    }
    let dir = public_dir();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    fs::copy(built().join("libnearfar_preload.so"), at("libnearfar_preload.so")).unwrap();
    let library = at("libnearfar_preload.so");
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    compile("rights.c", &at("rights"), &[library.to_str().unwrap(), &rpath]);
    let run = |mode: u32| {
        fs::set_permissions(at("rights"), fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(at("rights"));
        command.env("NEARFAR_CONF", format!("heap=0 print=smdk report={}", at("victim").display()));
        let by_conf = said(&command.output().unwrap());
        command.env_remove("NEARFAR_CONF").env("NEARFAR_PRINT_SMDK", "1");
        command.env("CXLMALLOC_CONF", "normal_size:512");
        (by_conf, said(&command.output().unwrap()))
    };
    // The same program with its caller's privileges obeys the configuration.
    let ((out, _), (by_smdk, lines)) = run(0o755);
    assert_eq!((out.as_str(), by_smdk.as_str()), ("of a kind\n", "of a kind\n"));
    assert!(lines.contains("normal_size = 512 MB"), "{lines}");
    fs::write(at("victim"), "as it was").unwrap();
    let plain = ("plain\n".to_string(), String::new());
    assert_eq!(run(0o4755), (plain.clone(), plain));
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "as it was");
}
