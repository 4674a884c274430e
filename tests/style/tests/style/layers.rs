//! Inside each product crate, imports go from higher to lower layers, as its README shows them.

use std::fs;

use aliquot_style::arrows::ALLOWED;
use aliquot_style::layers::{Imports, imports, layers, violations};
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

/// Writes a crate with these files, and returns what its modules import.
fn read(files: &[(&str, &str)]) -> Imports {
    let folder = tempfile::tempdir().expect("written");
    for (path, text) in files {
        let path = folder.path().join("src").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("written");
        fs::write(path, text).expect("written");
    }
    imports(folder.path()).expect("written")
}

fn three_modules(fit: &str) -> Imports {
    read(&[
        (
            "lib.rs",
            "pub mod decide; pub mod fit; mod node; #[cfg(test)] mod tests;",
        ),
        (
            "decide.rs",
            "use crate::fit::Fit; fn f() { node!(crate::node::NAME) }",
        ),
        ("fit.rs", fit),
        ("node/mod.rs", "mod gpu; mod use_of_gpu;"),
        ("node/gpu.rs", ""),
        ("node/use_of_gpu.rs", "use super::gpu::Gpu;"),
    ])
}

#[test]
fn accepts_imports_of_lower_layers() {
    let found = three_modules("#[cfg(test)] mod tests { use crate::decide; }");
    assert_eq!(
        violations(&found, &[vec!["decide"], vec!["fit"], vec!["node"]]),
        [""; 0]
    );
}

#[test]
fn rejects_import_of_same_or_higher_layer() {
    let found = three_modules("use crate::{node::gpu::{self, Gpu}, decide as d};");
    let decide = "fit -> decide: not a lower layer";
    let circle = "circle in crate::: decide -> fit; fit -> decide";
    let layered = |text: &[Vec<&str>]| violations(&found, text);
    assert_eq!(
        layered(&[vec!["decide"], vec!["fit"], vec!["node"]]),
        [decide, circle]
    );
    let same = layered(&[vec!["decide"], vec!["fit", "node"]]);
    assert_eq!(
        same,
        [decide, "fit -> node::gpu: not a lower layer", circle]
    );
}

#[test]
fn rejects_modules_that_readme_lacks_or_invents() {
    let found = violations(
        &three_modules(""),
        &[vec!["decide", "ledger"], vec!["node"]],
    );
    assert!(
        found.contains(&"fit: expected: in one layer of the README".to_owned()),
        "{found:?}"
    );
    assert!(
        found.contains(&"ledger: no module of this crate".to_owned()),
        "{found:?}"
    );
}

#[test]
fn rejects_circle_within_a_folder() {
    let found = read(&[
        ("lib.rs", "mod node;"),
        ("node/mod.rs", "mod gpu; mod usage; mod top;"),
        ("node/top.rs", "fn f() { super::gpu::f() }"),
        (
            "node/gpu.rs",
            "fn f() -> super::usage::Usage { vec![crate::node::usage::f()] }",
        ),
        ("node/usage.rs", "use super::gpu::Gpu;"),
    ]);
    let expected = "circle in crate::node: gpu -> usage; usage -> gpu";
    assert_eq!(violations(&found, &[vec!["node"]]), [expected]);
}
