//! The tree's own rules: who may use whom, how a file opens, how long it is, which names and words have no place here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each part of `src` and the parts it may use besides itself, whole (`model`) or one file of them (`engine::handle`).
/// All may use `error`, `ids` and `config`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("ids", &[]),
    ("config", &[]),
    ("command", &["loss::custom"]),
    (
        "api",
        &[
            "validate",
            "futures",
            "accounts",
            "store",
            "command",
            "engine::handle",
            "engine::load",
            "checkpoint::share",
            "upload",
            "chat",
            "tokenizer",
            "loss::custom",
        ],
    ),
    ("validate", &["command", "engine::handle", "loss::custom"]),
    (
        "futures",
        &["command", "accounts", "store", "wal", "engine::handle", "engine::keep", "engine::load", "engine::meter"],
    ),
    ("accounts", &["command", "store"]),
    ("scheduler", &["command"]),
    ("engine", &["command", "scheduler", "model", "loss", "sampling", "kernels", "checkpoint", "device", "tokenizer"]),
    ("model", &["command", "kernels"]),
    ("loss", &["command"]),
    ("sampling", &["command", "tokenizer"]),
    ("kernels", &[]),
    ("checkpoint", &["command"]),
    ("upload", &["command", "checkpoint", "model"]),
    ("store", &["command"]),
    ("wal", &[]),
    ("chat", &["tokenizer"]),
    ("tokenizer", &[]),
    ("device", &[]),
    ("hub", &[]),
    ("recipes", &[]),
    ("keys", &["store"]),
    ("rollback", &[]),
    ("backup", &["store", "server::data_dir"]),
    (
        "doctor",
        &[
            "device",
            "engine::memory",
            "hub",
            "kernels",
            "model",
            "server::data_dir",
            "server::lock",
            "store",
            "tokenizer",
        ],
    ),
    ("start", ANY),
    ("server", ANY),
    ("main", ANY),
    ("lib", ANY),
];
const ANY: &[&str] = &["*"];
const OPEN_TO_ALL: &[&str] = &["error", "ids", "config"];

/// The parts of `src` that know the wire's types.
const WIRE_TYPES_IN: &[&str] = &["api", "validate", "recipes", "doctor", "rollback"];

/// Longest file, in lines; what grows past it holds two ideas.
const FILE_LINES_MAX: usize = 400;
/// File names that say nothing.
const DRAWERS: &[&str] = &["utils", "util", "common", "misc", "helpers", "base", "stuff"];
/// Unfinished work and debugging leftovers; spelled in halves so that this file passes.
const LEFTOVERS: &[&str] =
    &[concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!("), concat!("FIX", "ME")];
/// Places that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("/wo", "rk/"), concat!("pypi", ".org")];

#[test]
fn folders_use_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for file in files("src", "rs") {
        let part = part_of(&file);
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == part) else {
            wrong.push(format!("{}: part `{part}` is missing in MAY_USE of tests/tidy.rs", show(&file)));
            continue;
        };
        for path in used_paths(&read(&file)) {
            let used = path.split("::").next().unwrap_or("");
            let allowed = |name: &str| allowed.contains(&name) || OPEN_TO_ALL.contains(&name);
            let fine = used == part || allowed("*") || allowed(used) || allowed(&path);
            // A lower-case name that is no part is an item at the crate's root, such as a macro.
            let known = MAY_USE.iter().any(|(name, _)| *name == used);
            if known && !fine {
                wrong.push(format!("{}: `{part}` may not use `crate::{path}`", show(&file)));
            }
        }
    }
    assert_clean("allowed edges", &wrong);
}

#[test]
fn every_rust_file_opens_with_a_line_that_says_what_it_is_for() {
    let bad = |text: &str| {
        let first = text.lines().next().unwrap_or("");
        !first.starts_with("//! ") || first.len() < 12
    };
    let wrong: Vec<_> = own_rust().into_iter().filter(|f| bad(&read(f))).map(|f| show(&f)).collect();
    assert_clean("first line must be `//! what this file is for`", &wrong);
}

#[test]
fn files_stay_short() {
    let wrong: Vec<_> = own_files()
        .into_iter()
        .map(|f| (read(&f).lines().count(), f))
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, f)| format!("{}: {lines} lines, at most {FILE_LINES_MAX}", show(&f)))
        .collect();
    assert_clean("file length", &wrong);
}

#[test]
fn no_file_is_a_drawer() {
    let stem = |f: &Path| f.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let wrong: Vec<_> = own_files().into_iter().filter(|f| DRAWERS.contains(&&*stem(f))).map(|f| show(&f)).collect();
    assert_clean("name a file after the idea it holds", &wrong);
}

#[test]
fn nothing_unfinished_and_no_machine_paths() {
    let mut wrong = Vec::new();
    for file in own_texts() {
        for (number, line) in read(&file).lines().enumerate() {
            for word in LEFTOVERS.iter().chain(MACHINE_PATHS).filter(|w| line.contains(**w)) {
                wrong.push(format!("{}:{}: {word}", show(&file), number + 1));
            }
        }
    }
    assert_clean("leftovers and paths of one machine", &wrong);
}

#[test]
fn the_environment_is_read_in_config_alone() {
    let reads = |text: &str| code_lines(text).any(|l| l.contains("std::env") || l.contains("env::var"));
    let wrong: Vec<_> = files("src", "rs")
        .into_iter()
        .filter(|f| part_of(f) != "config" && reads(&read(f)))
        .map(|f| show(&f))
        .collect();
    assert_clean("`std::env` outside src/config", &wrong);
}

#[test]
fn wire_types_stop_at_validate() {
    let names = |text: &str| code_lines(text).any(|l| l.contains("tinderbox_client"));
    let wrong: Vec<_> = files("src", "rs")
        .into_iter()
        .filter(|f| !WIRE_TYPES_IN.contains(&part_of(f).as_str()) && names(&read(f)))
        .map(|f| show(&f))
        .collect();
    assert_clean("`tinderbox_client` outside the parts that speak the wire", &wrong);
}

#[test]
fn the_scanner_sees_every_form_of_use() {
    let paths = |text: &str| used_paths(text).into_iter().collect::<Vec<_>>();
    assert_eq!(paths("use crate::model::config::X;"), ["model::config"]);
    assert_eq!(paths("use crate::{api::{a, b}, loss, store::x::Y};"), ["api", "loss", "store::x"]);
    assert_eq!(paths("let x = crate::engine::run(crate::error::Error::user(y));"), ["engine::run", "error"]);
    assert_eq!(paths("//! see crate::api\nuse super::x;"), [""; 0]);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn show(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[track_caller]
fn assert_clean(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

/// Every file below a folder of the tree with this extension, in order of name.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn own_rust() -> Vec<PathBuf> {
    ["src", "clients", "tests"].iter().flat_map(|folder| files(folder, "rs")).filter(|f| !is_copy(f)).collect()
}

/// Code, and all else of ours that is written to be read: pages, lists of packages, SQL, settings.
fn own_texts() -> Vec<PathBuf> {
    let mut all = own_files();
    for extension in ["md", "txt", "sql", "toml", "yaml"] {
        for folder in [".cargo", "clients", "docker", "migrations", "src", "tests"] {
            all.extend(files(folder, extension).into_iter().filter(|f| !is_copy(f)));
        }
    }
    all.extend(["Cargo.toml", ".clippy.toml", ".rustfmt.toml"].iter().map(|f| root().join(f)));
    all.retain(|f| show(f) != "src/docs/protocol.md"); // a reference, kept as it came
    all
}

/// Our Rust, Python and shell files and the README: everything but the suite and the drivers that are copied in.
fn own_files() -> Vec<PathBuf> {
    let mut all = own_rust();
    all.extend(["clients", "tests"].iter().flat_map(|folder| files(folder, "py")).filter(|f| !is_copy(f)));
    let scripts = [
        "README.md",
        ".ci/run",
        ".ci/full",
        "docker/Dockerfile",
        "docker/check.py",
        "docker/compose.yaml",
        "docker/healthcheck",
        "tests/acceptance",
        "tests/postgres",
        "tests/python_env",
        "tests/run",
        "tests/stages.sh",
        "tests/suite",
    ];
    all.extend(scripts.iter().map(|f| root().join(f)));
    all
}

/// True for the files that are kept byte for byte as they came (tests/shared_copies.rs lists them).
fn is_copy(path: &Path) -> bool {
    let shown = show(path);
    shown.starts_with("tests/conformance/")
        || super::shared_copies::BENCH_COPIES.iter().any(|name| shown == format!("tests/bench/{name}"))
}

/// `src/model/rope.rs` → `model`, `src/error.rs` → `error`.
fn part_of(file: &Path) -> String {
    let below = file.strip_prefix(root().join("src")).expect("a file below src");
    let first = below.components().next().expect("at least the file's name");
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|l| !l.trim_start().starts_with("//"))
}

/// What follows `crate::`, two segments deep where both are modules or functions: also inside `crate::{…}`.
fn used_paths(text: &str) -> BTreeSet<String> {
    let code = code_lines(text).collect::<Vec<_>>().join("\n");
    let mut paths = BTreeSet::new();
    for (at, pattern) in code.match_indices("crate::") {
        let rest = &code[at + pattern.len()..];
        match rest.strip_prefix('{') {
            Some(group) => paths.extend(group_heads(group)),
            None => paths.extend(head(rest)),
        }
    }
    paths
}

/// `engine::handle::Handle` → `engine::handle`, `error::Error` → `error`, `Error` → nothing.
fn head(text: &str) -> Option<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let is_module = |name: &str| name.starts_with(|c: char| c.is_ascii_lowercase());
    let first = name(text);
    let second = text[first.len()..].strip_prefix("::").map(name).filter(|n| is_module(n));
    is_module(&first).then(|| second.map_or(first.clone(), |s| format!("{first}::{s}")))
}

/// Heads of a use group's members: `a::{x, y}, b::c}` → a, b::c.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut fresh) = (0usize, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                heads.extend(head(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}
