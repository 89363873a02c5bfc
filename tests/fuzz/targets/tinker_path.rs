//! `tinker://` paths and ids: what is taken is written back the same and names a place below the directory it is joined to.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use tinderbox::ids::{CheckpointPath, ModelId, check_name};
use tinderbox::validate::weights::{sampling_path, training_path};

fuzz_target!(|text: &str| {
    // No id's directory has a colon.
    if let Some(model) = ModelId::from_dir_name(text).filter(|_| !text.contains(':')) {
        assert_eq!(ModelId::from_dir_name(&model.dir_name()), Some(model));
    }
    if check_name(text).is_ok() {
        stays_below(text);
    }
    let Ok(path) = text.parse::<CheckpointPath>() else {
        assert!(training_path(text).is_err() && sampling_path(text).is_err());
        return;
    };
    assert_eq!(path.to_string(), text);
    check_name(&path.name).expect("a path's name is a name");
    stays_below(&path.run.dir_name());
    stays_below(&path.name);
});

/// One plain component, so that no directory above is reached.
fn stays_below(name: &str) {
    let mut parts = Path::new(name).components();
    assert!(matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none(), "{name:?}");
    assert!(!name.contains('\0'), "{name:?} cannot be a file");
}
