//! The calls that a driver's library exports, read from its dynamic symbol table.

use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

use crate::ShimmedLibrary;

/// A longer table is not read, in bytes: a driver has about a thousand symbols.
const MAX_LENGTH: u64 = 4 << 20;

const HEADER: u64 = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const DYNAMIC_SYMBOLS: [u8; 4] = 11_u32.to_le_bytes();
/// The types of symbols that are functions, and the bindings that others may use.
const FUNCTIONS: [u8; 2] = [2, 10];
const BINDINGS: [u8; 2] = [1, 2];

/// Why the calls of a library are not known.
#[derive(Debug, Error)]
pub enum ExportsError {
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    #[error("a table of {0} bytes, expected at most {MAX_LENGTH}")]
    TooLong(u64),
    #[error("expected an ELF file of 64 bits, little-endian, with a dynamic symbol table")]
    NoSymbols,
    #[error("no function with a name of the API, which begins with {0}")]
    NoCalls(&'static str),
}

/// The names of the API's functions that `file`, a driver's `library`, exports, sorted. What it
/// exports for debuggers is left out.
pub fn exported_calls(
    library: ShimmedLibrary,
    file: &mut (impl Read + Seek),
) -> Result<Vec<String>, ExportsError> {
    let header = part(file, 0, HEADER)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(ExportsError::NoSymbols);
    }
    let start = u64::from_le_bytes(field(&header, 40)?);
    let count = u16::from_le_bytes(field(&header, 60)?);
    let sections = part(file, start, u64::from(count) * SECTION as u64)?;
    let (sections, _) = sections.as_chunks::<SECTION>();
    let is_table = |section: &&[u8; SECTION]| section[4..8] == DYNAMIC_SYMBOLS;
    let symbols = sections.iter().find(is_table);
    let symbols = symbols.ok_or(ExportsError::NoSymbols)?;
    // Sections are counted in 16 bits.
    let strings = usize::from(u16::from_le_bytes(field(symbols, 40)?));
    let strings = sections.get(strings).ok_or(ExportsError::NoSymbols)?;
    let strings = content(file, strings)?;
    let symbols = content(file, symbols)?;
    let (symbols, _) = symbols.as_chunks::<SYMBOL>();
    let names = symbols.iter().filter_map(|one| function(one, &strings));
    let calls = names.filter(|name| {
        let rest = name.strip_prefix(library.prefix);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
    });
    let mut calls: Vec<String> = calls.map(str::to_owned).collect();
    calls.sort_unstable();
    // A name may have several versions.
    calls.dedup();
    if calls.is_empty() {
        return Err(ExportsError::NoCalls(library.prefix));
    }
    Ok(calls)
}

/// A part of a file, which is shorter at the file's end.
fn part(file: &mut (impl Read + Seek), start: u64, length: u64) -> Result<Vec<u8>, ExportsError> {
    if length > MAX_LENGTH {
        return Err(ExportsError::TooLong(length));
    }
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.by_ref().take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn content(
    file: &mut (impl Read + Seek),
    section: &[u8; SECTION],
) -> Result<Vec<u8>, ExportsError> {
    let start = u64::from_le_bytes(field(section, 24)?);
    let length = u64::from_le_bytes(field(section, 32)?);
    part(file, start, length)
}

fn field<const LENGTH: usize>(header: &[u8], at: usize) -> Result<[u8; LENGTH], ExportsError> {
    let bytes = header.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or(ExportsError::NoSymbols)
}

/// The name of a symbol, if it is a function that the library defines for others.
fn function<'a>(symbol: &[u8; SYMBOL], strings: &'a [u8]) -> Option<&'a str> {
    let kind = symbol[4];
    let is_function = FUNCTIONS.contains(&(kind & 15)) && BINDINGS.contains(&(kind >> 4));
    let is_defined = symbol[6..8] != [0_u8, 0];
    if !is_function || !is_defined {
        return None;
    }
    let start = u32::from_le_bytes(field(symbol, 0).ok()?);
    let name = strings.get(usize::try_from(start).ok()?..)?;
    str::from_utf8(name.split(|byte| *byte == 0).next()?).ok()
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
        let no_symbols = "with a dynamic symbol table";
        check(b"", no_symbols);
        check(&[b'#'; 100], no_symbols);
        let [mut long, of_nvml] =
            LIBRARIES.map(|library| build_shim(library, FOLDER, Architecture::X86_64));
        check(&long[..63], no_symbols);
        check(&long[..long.len() / 2], no_symbols);
        check(&of_nvml, "which begins with cu");
        // The length of the second of six sections, the symbols.
        let at = long.len() - 4 * SECTION + 32;
        long[at + 3] = 1;
        check(&long, "expected at most 4194304");
    }
}
