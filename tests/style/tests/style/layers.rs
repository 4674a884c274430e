//! Inside each product crate, imports go from higher to lower layers, as its README shows them.

use std::fs;

use aliquot_style::arrows::ALLOWED;
use aliquot_style::layers::{imports, layers, violations};
use aliquot_style::tree;

#[test]
fn modules_use_only_lower_layers() {
    let metadata = tree::metadata(&["--no-deps"]).unwrap();
    let mut errors = Vec::new();
    for (name, _) in ALLOWED {
        let folder = tree::folder_of(&metadata, name).unwrap();
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        let shown = layers(&readme).unwrap_or_default();
        let found = violations(&imports(&folder).unwrap(), &shown);
        errors.extend(found.into_iter().map(|error| format!("{name}: {error}")));
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn rejects_import_of_higher_layer_and_circle() {
    let folder = tempfile::tempdir().unwrap();
    let src = folder.path().join("src");
    fs::create_dir(&src).unwrap();
    for (file, text) in [
        ("lib.rs", "pub mod decide; pub mod fit; mod node;"),
        ("decide.rs", "fn f() { node!(crate::fit::Fit) }"),
        (
            "fit.rs",
            "use crate::{node::{self, Gpu}, decide as d};\n#[cfg(test)] mod tests { use crate::new; }",
        ),
        ("node.rs", ""),
    ] {
        fs::write(src.join(file), text).unwrap();
    }
    let layers = [vec!["decide"], vec!["fit"], vec!["node"]];
    let found = violations(&imports(folder.path()).unwrap(), &layers);
    let expected = [
        "fit -> decide: not a lower layer",
        "circle in crate::: decide -> fit; fit -> decide",
    ];
    assert_eq!(found, expected);
}
