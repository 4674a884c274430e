//! The calls that a driver's library exports, by its dynamic symbol table.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek};

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol, ReadCache, SymbolKind, SymbolScope};
use thiserror::Error;

use crate::ShimmedLibrary;

#[derive(Debug, Error)]
pub enum ExportsError {
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    #[error("expected an ELF file of 64 bits, little-endian: {0}")]
    NoElf(#[from] object::Error),
    #[error("no function with a name of the API, which begins with {0}")]
    NoCalls(&'static str),
}

/// The names of the API's functions that `file`, a driver's `library`, exports, sorted. What it
/// exports for debuggers is left out.
pub fn exported_calls(
    library: ShimmedLibrary,
    file: &mut (impl Read + Seek),
) -> Result<Vec<String>, ExportsError> {
    let cache = ReadCache::new(file);
    let driver = ElfFile64::<LittleEndian, _>::parse(&cache)?;
    let exported = driver.dynamic_symbols().filter(|symbol| {
        symbol.kind() == SymbolKind::Text && symbol.scope() == SymbolScope::Dynamic
    });
    let names = exported.filter_map(|symbol| symbol.name().ok());
    let of_api = names.filter(|name| {
        let rest = name.strip_prefix(library.prefix);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
    });
    // A name may have several versions.
    let calls: BTreeSet<&str> = of_api.collect();
    if calls.is_empty() {
        return Err(ExportsError::NoCalls(library.prefix));
    }
    Ok(calls.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{Architecture, FOLDER, LIBRARIES, build_shim};

    #[test]
    fn refuses_file_without_calls_with_a_reason() {
        let check = |file: &[u8], expected: &str| {
            let error = exported_calls(LIBRARIES[0], &mut Cursor::new(file));
            let error = error.expect_err("no calls").to_string();
            assert!(error.contains(expected), "{error}");
        };
        let no_elf = "expected an ELF file";
        check(b"", no_elf);
        check(&[b'#'; 100], no_elf);
        let [mut long, of_nvml] =
            LIBRARIES.map(|library| build_shim(library, FOLDER, Architecture::X86_64));
        check(&long[..63], no_elf);
        check(&long[..long.len() / 2], no_elf);
        check(&of_nvml, "which begins with cu");
        // The length of the second of six sections, the symbols: longer than the file.
        let at = long.len() - 4 * 64 + 32;
        long[at + 3] = 1;
        check(&long, no_elf);
    }
}
