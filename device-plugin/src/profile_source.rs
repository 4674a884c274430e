//! The text of the profile configuration, as a mounted `ConfigMap` or a file has it now. Changes
//! are detected by the text, not by names, times or links.

use std::io;
use std::path::Path;

/// The text at `path`: a file, or a directory with one file that ends in `.yaml`, `.yml` or
/// `.json`. `None` if there is none. The error is for the administrator.
pub fn read(path: &Path) -> Result<Option<String>, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if found.is_file() {
        return std::fs::read_to_string(path).map(Some).map_err(failed);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        let hidden = file.file_name().and_then(|name| name.to_str());
        let hidden = hidden.is_none_or(|name| name.starts_with('.'));
        if matches!(ending, Some("yaml" | "yml" | "json")) && !hidden {
            files.push(file);
        }
    }
    match files.as_slice() {
        [] => Ok(None),
        [file] => {
            let failed = |error| format!("cannot read {}: {error}", file.display());
            std::fs::read_to_string(file).map(Some).map_err(failed)
        }
        several => {
            let n = several.len();
            let path = path.display();
            Err(format!(
                "{path} has {n} configuration files, expected one .yaml, .yml or .json file"
            ))
        }
    }
}

/// A hash by which people see that two nodes read the same text (FNV-1a).
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_file_or_mounted_config_map() {
        let dir = tempfile::tempdir().expect("tempdir");
        let check = |name: &str, expected: Result<Option<&str>, &str>| match (
            read(&dir.path().join(name)),
            expected,
        ) {
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, expected) => {
                assert_eq!(
                    found.as_ref().map(Option::as_deref).ok(),
                    expected.ok(),
                    "{name}"
                );
            }
        };
        check("none", Ok(None));
        std::fs::write(dir.path().join("a.yaml"), "one").expect("written");
        check("a.yaml", Ok(Some("one")));
        // As the kubelet mounts it: a link to a link to the file of this version.
        let data = dir.path().join("map/..v1");
        std::fs::create_dir_all(&data).expect("made");
        check("map", Ok(None));
        std::fs::write(data.join("profiles.yaml"), "two").expect("written");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, dir.path().join(at));
        link("..v1", "map/..data").expect("linked");
        link("..data/profiles.yaml", "map/profiles.yaml").expect("linked");
        check("map", Ok(Some("two")));
        std::fs::write(dir.path().join("map/more.json"), "").expect("written");
        check("map", Err("2 configuration files"));
    }
}
