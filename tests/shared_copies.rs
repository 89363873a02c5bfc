//! The conformance suite and the bench drivers are copies: where the originals lie beside the checkout, both must be equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of tests/bench that are copies; the folder may hold drivers of our own beside them.
pub const BENCH_COPIES: &[&str] = &[
    "baseline.md",
    "bench_llamacpp.py",
    "bench_tinker.py",
    "bench_torch.py",
    "make_gguf.py",
    "make_model.py",
    "probe_isolation.py",
    "probe_semantics.py",
];

#[test]
fn the_suite_is_complete() {
    let suite = contents(&root().join("tests/conformance"));
    for name in [
        "conftest.py",
        "harness.py",
        "refmath.py",
        "make_tiny_model.py",
        "acceptance/run_recipes.py",
        "acceptance/make_world.py",
    ] {
        assert!(suite.contains_key(Path::new(name)), "tests/conformance/{name} is missing");
    }
    let tests = suite.keys().filter(|p| p.to_string_lossy().starts_with("test_")).count();
    assert_eq!(tests, 15, "test files of the suite");
    for name in BENCH_COPIES {
        assert!(root().join("tests/bench").join(name).is_file(), "tests/bench/{name} is missing");
    }
}

#[test]
fn copies_equal_their_originals() {
    let shared = root().join("../shared");
    if !shared.is_dir() {
        return; // a clone elsewhere has no originals to compare with
    }
    let originals = contents(&shared.join("conformance"));
    let copies = contents(&root().join("tests/conformance"));
    assert_eq!(
        copies.keys().collect::<Vec<_>>(),
        originals.keys().collect::<Vec<_>>(),
        "file names of tests/conformance"
    );
    for (name, original) in &originals {
        assert!(copies[name] == *original, "tests/conformance/{} differs from its original", name.display());
    }
    let originals = contents(&shared.join("bench"));
    let names: Vec<_> = originals.keys().map(|p| p.to_string_lossy().into_owned()).collect();
    assert_eq!(names, BENCH_COPIES, "file names of the bench drivers");
    for (name, original) in &originals {
        let copy = fs::read(root().join("tests/bench").join(name)).expect("a copied bench driver");
        assert!(copy == *original, "tests/bench/{} differs from its original", name.display());
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Relative path → bytes of every file below a folder, caches of Python left out.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() && !path.ends_with("__pycache__") && !path.ends_with(".pytest_cache") {
                open.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(folder).expect("a path below the folder").to_path_buf();
                found.insert(name, fs::read(&path).expect("a readable file"));
            }
        }
    }
    found
}
