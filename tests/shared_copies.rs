//! The conformance suite and the bench drivers are copies: they must be as they came, and equal to the originals where
//! those lie beside the checkout.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

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

/// What `sha256sum` says of every copy, by its path below tests.
const SUMS: &str = include_str!("copies.sha256");

/// After the originals have changed and were copied again:
/// `cd tests && git ls-files conformance bench/COPY… | LC_ALL=C sort | xargs sha256sum > copies.sha256`.
#[test]
fn copies_are_as_they_came() {
    let suite = contents(&root().join("tests/conformance"));
    let mut copies: BTreeMap<String, Vec<u8>> =
        suite.into_iter().map(|(name, bytes)| (format!("conformance/{}", name.display()), bytes)).collect();
    for name in BENCH_COPIES {
        let bytes =
            fs::read(root().join("tests/bench").join(name)).unwrap_or_else(|e| panic!("tests/bench/{name}: {e}"));
        copies.insert(format!("bench/{name}"), bytes);
    }
    let sums: BTreeMap<&str, &str> =
        SUMS.lines().map(|line| line.split_once("  ").expect("SUM  PATH")).map(|(sum, name)| (name, sum)).collect();
    assert_eq!(copies.keys().collect::<Vec<_>>(), sums.keys().collect::<Vec<_>>(), "copies, and tests/copies.sha256");
    for (name, bytes) in &copies {
        assert_eq!(hex::encode(Sha256::digest(bytes)), sums[name.as_str()], "tests/{name} was changed");
    }
}

/// A clone elsewhere has no originals to compare with: there `copies_are_as_they_came` is all that can be said.
#[test]
fn copies_equal_their_originals_where_those_lie_beside_the_checkout() {
    let shared = root().join("../shared");
    if !shared.is_dir() {
        eprintln!("nothing was compared: {} is no directory", shared.display());
        return;
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
