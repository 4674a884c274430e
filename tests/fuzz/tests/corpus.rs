//! Replays every input of the corpus against the properties, on stable.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use aliquot_fuzz::TARGETS;

/// All targets together; inputs are minimised before they are added.
const MAX_BYTES: usize = 1 << 20;
/// All targets together.
const MAX_INPUTS: usize = 300;

#[test]
fn corpus_breaks_no_property() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let (mut bytes, mut all_inputs) = (0, 0);
    let mut broken = Vec::new();
    for (target, check) in TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(top.join(target)).unwrap() {
            let path = entry.unwrap().path();
            let input = fs::read(&path).unwrap();
            inputs += 1;
            bytes += input.len();
            if catch_unwind(|| check(&input)).is_err() {
                broken.push(path);
            }
        }
        assert!(inputs > 0, "no corpus for {target}");
        all_inputs += inputs;
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(bytes < MAX_BYTES, "{bytes} bytes: minimise the corpus");
    assert!(
        all_inputs <= MAX_INPUTS,
        "{all_inputs} inputs: minimise the corpus"
    );
}

#[test]
fn every_target_has_a_program() {
    let manifest = include_str!("../Cargo.toml");
    for (target, _) in TARGETS {
        let program = format!("name = \"{target}\"\npath = \"fuzz_targets/{target}.rs\"");
        assert!(manifest.contains(&program), "{target}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
