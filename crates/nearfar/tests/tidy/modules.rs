//! Each module of a crate is used by something outside it.
//!
//! A module that no path outside its own file and folder goes through is dead, whatever its visibility: the compiler does not warn
//! about public items. Paths are read from the text, without comments and strings: `a::b::{c, d::e}` in a `use` or anywhere else,
//! resolved from `crate`, `self`, `super`, a crate's name, or a child of the module it stands in. Fuzz targets and integration
//! tests do not count as uses. Excepted are modules for tests (`cfg(test)`), and those that implement a type defined elsewhere.
//! Not here: unused items of a module that is used; modules written inline.

use std::collections::{BTreeMap, BTreeSet};

/// A module: the crate's library name, and the names from its root.
type Module = Vec<String>;

/// A file of a crate: its module, its text without comments and strings.
struct Source {
    module: Module,
    tokens: Vec<String>,
    text: String,
}

/// A path, and the name that its target has after the import.
type Written = (Vec<String>, String);

/// The modules there are, and those that a file has imported, by name.
struct Known {
    modules: BTreeSet<Module>,
    imported: BTreeMap<String, Module>,
}

/// Text without comments, strings and characters.
fn code(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if c == '"' {
            let mut end = 1;
            while end < rest.len() && rest.as_bytes()[end] != b'"' {
                end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
            }
            (end + 1).min(rest.len())
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") || rest.starts_with("'\\''") {
            4
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        rest = rest.get(skip..).unwrap_or_default();
        out.push(' ');
    }
    out
}

/// Names, `::`, and single characters.
fn tokens(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_name = false;
    for c in code.chars() {
        let goes_on = c.is_alphanumeric() || c == '_';
        match found.last_mut() {
            Some(last) if goes_on && is_name => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {}
            _ => found.push(c.to_string()),
        }
        is_name = goes_on;
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Adds each path that begins at `at`, behind `before`; gives where they end.
fn paths(tokens: &[String], mut at: usize, before: &[String], found: &mut Vec<Written>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") if !path.is_empty() => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    let end = paths(tokens, at, &path, found);
                    at = end.max(at + 1);
                }
                return at + 1;
            }
            Some(token) if is_name(token) => path.push(token.to_owned()),
            _ => break,
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token != "::") {
            break;
        }
        at += 1;
    }
    let alias = tokens.get(at).filter(|token| *token == "as").and(tokens.get(at + 1));
    let last = path.iter().rfind(|name| *name != "self");
    if let Some(name) = alias.or(last).cloned().filter(|_| path.len() > before.len()) {
        found.push((path, name));
    }
    at
}

/// Modules declared in a file as `mod name;`, but for those for tests.
fn declared(text: &str) -> Vec<String> {
    let mut attributes = String::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push_str(line);
            continue;
        }
        let name = line.strip_suffix(';').and_then(|line| {
            let (visibility, name) = line.rsplit_once("mod ")?;
            (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
        });
        if let Some(name) =
            name.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
            && !["test", "fuzzing", "path", "doctest"].iter().any(|word| attributes.contains(word))
        {
            found.push(name.to_owned());
        }
        attributes.clear();
    }
    found
}

impl Source {
    /// All paths that are written here.
    fn paths(&self) -> Vec<Written> {
        let (tokens, mut found, mut at) = (&self.tokens, Vec::new(), 0);
        while at < tokens.len() {
            let starts = is_name(&tokens[at])
                && tokens.get(at + 1).is_some_and(|token| token == "::")
                && (at == 0 || tokens[at - 1] != "::");
            at = if starts { paths(tokens, at, &[], &mut found) } else { at + 1 };
        }
        found
    }

    /// Whether it has items that are used without its name: exported C functions, or methods of a type defined elsewhere.
    fn extends(&self) -> bool {
        if ["no_mangle", "global_asm!"].iter().any(|word| self.text.contains(word)) {
            return true;
        }
        let of = |line: &str| {
            let of = line.rsplit(" for ").next()?.trim_start_matches("impl").trim_start();
            let of = if of.starts_with('<') { of.split_once("> ")?.1 } else { of };
            let name = of.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next()?;
            Some(name.to_owned()).filter(|name| !name.is_empty())
        };
        let mut types = self.text.lines().filter(|line| line.starts_with("impl")).filter_map(of);
        let kinds = ["struct", "enum", "trait", "union", "type"];
        types.any(|name| !kinds.iter().any(|kind| self.text.contains(&format!("{kind} {name}"))))
    }
}

/// The crates: their names by folder, and by what others call them.
pub(super) struct Crates {
    of_folder: BTreeMap<String, String>,
    called: BTreeMap<String, String>,
}

impl Crates {
    /// Of manifests, by name and text.
    pub(super) fn of(manifests: &[(String, String)]) -> Self {
        let (mut of_folder, mut called) = (BTreeMap::new(), BTreeMap::new());
        for (path, text) in manifests {
            let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
            let names = text.lines().filter_map(|line| line.strip_prefix("name = \""));
            let mut names = names.map(|name| name.trim_end_matches('"').replace('-', "_"));
            let Some(name) = names.next() else { continue };
            let library =
                text.split("[lib]\nname = \"").nth(1).and_then(|text| text.split('"').next());
            called.insert(library.unwrap_or(&name).to_owned(), name.clone());
            called.insert(name.clone(), name.clone());
            of_folder.insert(folder.to_owned(), name);
        }
        Self { of_folder, called }
    }

    /// The module of a file: of `crates/cache/src/copy/dsa.rs`, `nearfar_cache`, `copy`, `dsa`.
    fn module(&self, name: &str) -> Option<Module> {
        let (folder, file) = name.split_once("/src/")?;
        let mut module = vec![self.of_folder.get(folder)?.clone()];
        let names = file.trim_end_matches(".rs").split('/');
        let is_root = |name: &&str| !["lib", "main", "mod"].contains(name);
        module.extend(names.filter(is_root).map(str::to_owned));
        Some(module)
    }

    /// Where a path leads, as seen from a module that has imported some.
    fn resolve(&self, from: &Module, path: &[String], known: &Known) -> Module {
        let child =
            |base: &Module, name: &String| [&base[..], core::slice::from_ref(name)].concat();
        let first = path[0].as_str();
        let (mut base, mut rest) = (from.clone(), path);
        if first == "crate" {
            base.truncate(1);
            rest = &path[1..];
        } else if let Some(name) = self.called.get(first) {
            base = vec![name.clone()];
            rest = &path[1..];
        } else if let Some(module) = known.imported.get(first) {
            base = module.clone();
            rest = &path[1..];
        } else if !["self", "super"].contains(&first) {
            // A child, or what `use super::*` brings.
            while base.len() > 1 && !known.modules.contains(&child(&base, &path[0])) {
                base.pop();
            }
        }
        for name in rest {
            match name.as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                _ => base = child(&base, name),
            }
        }
        base
    }
}

/// Modules that nothing outside them uses, of files by name and text.
pub(super) fn unused(files: &[(String, String)], crates: &Crates) -> Vec<String> {
    let sources = files.iter().filter_map(|(name, text)| {
        let code = code(text);
        // Examples and build scripts use their crate by its name.
        let is_example = name.contains("/examples/") || name.contains("/benches/");
        let module = crates.module(name).or(is_example.then(Module::new))?;
        if module.iter().any(|name| name == "tests") {
            return None;
        }
        Some(Source { module, tokens: tokens(&code), text: code })
    });
    let sources: Vec<Source> = sources.collect();
    let modules = sources.iter().map(|source| source.module.clone()).collect();
    let mut known = Known { modules, imported: BTreeMap::new() };
    let mut wanted = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.module.is_empty()) {
        let children = declared(&source.text).into_iter();
        wanted.extend(children.map(|name| [&source.module[..], &[name]].concat()));
    }
    for source in &sources {
        let places = source.paths().into_iter();
        let paths: Vec<_> = places.filter(|(path, _)| path.len() > 1).collect();
        known.imported.clear();
        let lead = |(path, name): &Written| {
            let module = crates.resolve(&source.module, path, &known);
            known.modules.contains(&module).then(|| (name.clone(), module))
        };
        known.imported = paths.iter().filter_map(lead).collect();
        for (path, _) in &paths {
            let leads = crates.resolve(&source.module, path, &known);
            for module in (2..=leads.len()).map(|end| &leads[..end]) {
                if !source.module.starts_with(module) {
                    wanted.remove(module);
                }
            }
        }
        if source.extends() {
            wanted.remove(&source.module);
        }
    }
    wanted.into_iter().map(|module| module.join("::")).collect()
}
