//! Replays every input of the corpus against the properties, on stable.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use aliquot_fuzz::TARGETS;

#[test]
fn corpus_breaks_no_property() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut broken = Vec::new();
    for (target, check) in TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(top.join(target)).unwrap() {
            let path = entry.unwrap().path();
            let input = fs::read(&path).unwrap();
            inputs += 1;
            if catch_unwind(|| check(&input)).is_err() {
                broken.push(path);
            }
        }
        assert!(inputs > 0, "no corpus for {target}");
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
