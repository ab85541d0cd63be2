//! Thirteen everyday programs, most of them short: interpreters, shell pipelines, compilers, git, archives. Each does a
//! fixed amount of work on data generated once; its output is discarded.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Running, Used};
use crate::ways::Way;

/// A program with its arguments, in which `@` stands for the data directory.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Programs that must be installed.
    needs: &'static [&'static str],
    words: &'static [&'static str],
}

const fn program(
    name: &'static str,
    needs: &'static [&'static str],
    words: &'static [&'static str],
) -> Program {
    Program { name, needs, words }
}

const PYTHON: &str = "import json, re, threading
texts = [json.dumps({'a': list(range(i % 200)), 'b': 't' * i}) for i in range(2000)]
threads = [threading.Thread(target=lambda: [re.sub('a', 'b', text) for text in texts]) for _ in range(2)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(len([json.loads(text) for text in texts]))";
const SQLITE: &str = "create table t(a integer primary key, b text);
with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000) insert into t select x, 'text ' || x from c;
create index i on t(b); select count(*) from t where b like '%9';";
const PERL: &str = "my %h; for my $i (1..200000) { $h{\"k$i\"} = \"v$i\" } my $n = 0; \
    for (keys %h) { $n += length $h{$_} } print $n";
const NODE: &str = "const a = []; for (let i = 0; i < 100000; i++) a.push({ i, t: 'x'.repeat(i % 50) }); \
    console.log(JSON.stringify(a).length)";
const PIPELINES: &str =
    "for i in 1 2 3 4 5 6 7 8 9 10; do seq 1 200 | grep 1 | sort -r | sed s/1/2/ | wc -l; done";

/// All programs, in the order of the table.
pub(crate) const ALL: [Program; 13] = [
    program("python3", &["python3"], &["python3", "-c", PYTHON]),
    program("sqlite3", &["sqlite3"], &["sqlite3", ":memory:", SQLITE]),
    program("perl", &["perl"], &["perl", "-e", PERL]),
    program("node", &["node"], &["node", "-e", NODE]),
    program("java -version", &["java"], &["java", "-version"]),
    program("java, direct buffers", &["java", "javac"], &["java", "-cp", "@", "Direct"]),
    program("gcc -O1", &["gcc"], &["gcc", "-O1", "-S", "-o", "/dev/null", "@/source.c"]),
    program("rustc -O", &["rustc"], &["@/rustc", "-O", "-o", "@/rust", "@/source.rs"]),
    program("bash, 10 pipelines", &["bash"], &["bash", "-c", PIPELINES]),
    program("sort", &["sort"], &["sort", "--parallel=2", "-o", "/dev/null", "@/lines"]),
    program("xz", &["xz"], &["sh", "-c", "xz -2 -T2 -c @/lines | xz -dc | wc -c"]),
    program(
        "git",
        &["git"],
        &["sh", "-c", "cd @/repository && git gc -q && git fsck && git rev-list --all | wc -l"],
    ),
    program(
        "tar and gzip",
        &["tar", "gzip"],
        &["sh", "-c", "cd @ && tar c tree | gzip | gzip -dc | tar t | wc -l"],
    ),
];

impl Program {
    /// The first required program that is not installed.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let there = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
        self.needs.iter().copied().find(|tool| !there(tool))
    }

    /// Runs the program once; returns the resource usage of the program and its children.
    pub(crate) fn run(&self, way: &Way, data: &Path) -> Result<Used, String> {
        let place = data.display().to_string();
        let mut words = self.words.iter().map(|word| match *word {
            // Not every @ stands for the directory.
            word if word.starts_with('@') || word.contains("@/") || word.contains(" @ ") => {
                word.replace('@', &place)
            }
            word => word.to_string(),
        });
        let mut command = way.command(&words.next().unwrap_or_default());
        Running::start(command.args(words))?.end().map_err(|why| format!("{}: {why}", self.name))
    }
}

/// Generates the data below `dir`, unless it is there.
pub(crate) fn prepare(dir: &Path) -> Result<PathBuf, String> {
    let data = dir.join("programs");
    let done = data.join("done");
    if !done.exists() {
        eprintln!("making the programs' data, once");
        let _ = fs::remove_dir_all(&data);
        make(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        fs::write(&done, "").map_err(|error| error.to_string())?;
    }
    Ok(data)
}

fn make(data: &Path) -> std::io::Result<()> {
    for dir in ["tree", "repository"] {
        fs::create_dir_all(data.join(dir))?;
    }
    let lines = (0..400_000_u64).map(|i| format!("{} line of text {i}\n", i * 7919 % 1_000_003));
    fs::write(data.join("lines"), lines.collect::<String>())?;
    let mut source = String::from("#include <stdio.h>\n");
    for i in 1..=150 {
        // Writing to a string can't fail.
        let _ = writeln!(
            source,
            "int f{i}(int a, char *s) {{ int r = 0; for (int i = 0; i < a; i++) {{ r += s[i % {i}] * {i}; \
             if (r > {i}00) r -= a; }} printf(\"%d\", r); return r; }}"
        );
    }
    fs::write(data.join("source.c"), source)?;
    let rust = "use std::collections::BTreeMap;\nfn main() { let m: BTreeMap<u64, String> = (0..100).map(|i| (i, \
                i.to_string())).collect(); println!(\"{m:?}\"); }\n";
    fs::write(data.join("source.rs"), rust)?;
    let java = "public class Direct { public static void main(String[] a) { long s = 0; for (int i = 0; i < 2000; i++) { \
                java.nio.ByteBuffer b = java.nio.ByteBuffer.allocateDirect(64 << 10); b.put(0, (byte) 1); s += b.get(0); } \
                System.out.println(s); } }\n";
    fs::write(data.join("Direct.java"), java)?;
    for i in 0..200 {
        fs::write(data.join(format!("tree/file{i}")), format!("text {i}\n").repeat(500))?;
    }
    // A missing compiler is reported later, by `missing`.
    let _ = quiet(Command::new("javac").arg("-d").arg(data).arg(data.join("Direct.java")));
    // The compiler itself: rustc in PATH may be rustup's wrapper.
    let root = Command::new("rustc").args(["--print", "sysroot"]).output();
    if let Ok(root) = root {
        let rustc = Path::new(String::from_utf8_lossy(&root.stdout).trim()).join("bin/rustc");
        std::os::unix::fs::symlink(rustc, data.join("rustc"))?;
    }
    repository(&data.join("repository"))
}

fn repository(dir: &Path) -> std::io::Result<()> {
    let git = |words: &[&str]| {
        let identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"];
        quiet(Command::new("git").arg("-C").arg(dir).args(identity).args(words))
    };
    let _ = git(&["init", "-q"]);
    for commit in 0..30 {
        for file in 0..20 {
            let text = format!("line {commit} {file}\n").repeat(200);
            fs::write(dir.join(format!("file{file}")), text)?;
        }
        let _ = git(&["add", "-A"]);
        let _ = git(&["commit", "-qm", &format!("commit {commit}")]);
    }
    // So that the first run does not do more work than the others.
    let _ = git(&["gc", "-q"]);
    Ok(())
}

fn quiet(command: &mut Command) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
