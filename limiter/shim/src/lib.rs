//! Shim libraries: ELF files without code that carry the name of a driver's library and need two
//! others, first `libvgpu.so` and then the real one under another name. A symbol lookup in a shim
//! finds ours if we have one, and else the driver's.
//!
//! The loader finds no symbol in a shim. Linkers find the driver's calls there, in a symbol table of
//! their own, so that programs are linked in a container as against the real library.
//!
//! The files are built in memory, without a linker.

#![allow(missing_docs, reason = "the names say what most parts are")]

mod exports;

pub use exports::{ExportsError, exported_calls};

/// The limiter, by the name under which the shims need it.
pub const LIMITER: &str = "libvgpu.so";
/// Where a container finds [`LIMITER`] and the real libraries.
pub const FOLDER: &str = "/.aliquot/lib";

/// A library of the driver that is replaced by a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShimmedLibrary {
    /// Its usual name; its versioned files begin the same, without the last number.
    pub name: &'static str,
    /// The name of the real library beside a shim.
    pub real: &'static str,
    /// How the names of its calls begin, before a capital letter.
    prefix: &'static str,
    /// The calls of known drivers, one in a line.
    calls: &'static str,
}

impl ShimmedLibrary {
    pub fn known_calls(self) -> impl Iterator<Item = &'static str> {
        self.calls.lines().filter(|line| !line.starts_with('#'))
    }
}

pub const LIBRARIES: [ShimmedLibrary; 2] = [
    ShimmedLibrary {
        name: "libcuda.so.1",
        real: "libcuda-real.so.1",
        prefix: "cu",
        calls: include_str!("../../names/cuda-13.5.txt"),
    },
    ShimmedLibrary {
        name: "libnvidia-ml.so.1",
        real: "libnvidia-ml-real.so.1",
        prefix: "nvml",
        calls: include_str!("../../names/nvml-13.5.txt"),
    },
];

/// The number of shims for CUDA drivers that an image brings itself, each with a real library of its
/// own.
pub const COMPAT_LIBRARIES: usize = 8;

/// The folder in [`FOLDER`] with the real library of such a shim.
pub fn compat_folder(index: usize) -> String {
    format!("compat-{index}")
}

pub fn compat_shim(index: usize) -> String {
    format!("compat-{index}.so")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// The architecture that this was compiled for, if there is a shim for it.
    pub const HERE: Option<Self> = if cfg!(target_arch = "x86_64") {
        Some(Self::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Self::Aarch64)
    } else {
        None
    };

    const fn number(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }
}

const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const SEGMENTS: u64 = 3;
const DYNAMIC: u64 = HEADER + SEGMENTS * SEGMENT;
const ENTRY: u64 = 16;
const ENTRIES: u64 = 10;
/// One hash bucket for the one symbol that the loader finds, the empty one.
const HASH: u64 = DYNAMIC + ENTRIES * ENTRY;
const SYMBOLS: u64 = HASH + 16;
const SYMBOL: u64 = 24;
/// The address of all calls, which nothing uses: the loader finds none of them.
const CODE: u64 = SYMBOLS + SYMBOL;
const CODE_LENGTH: u64 = 16;
const STRINGS: u64 = CODE + CODE_LENGTH;
/// The largest page size of both architectures.
const PAGE: u64 = 0x1_0000;

const SECTION: u64 = 64;
/// The names of the sections after the empty one, filled up to a multiple of eight bytes.
const SECTION_NAMES: &[u8; 48] = b"\0.dynstr\0.dynsym\0.dynamic\0.text\0.shstrtab\0\0\0\0\0\0\0";
/// How many sections there are, and the numbers of some.
const SECTIONS: u16 = 6;
const STRING_SECTION: u32 = 1;
const CODE_SECTION: u64 = 4;
const NAME_SECTION: u16 = 5;
/// Type and binding of a symbol: a function, global.
const GLOBAL_FUNCTION: u64 = 0x12;

/// Builds the shim for a CUDA driver that an image brings itself, with the calls of known drivers.
pub fn build_compat_shim(index: usize, machine: Architecture) -> Vec<u8> {
    let folders = format!("{FOLDER}/{}:{FOLDER}", compat_folder(index));
    build_shim(LIBRARIES[0], &folders, machine)
}

/// Builds the shim for `library` with the calls of known drivers; `folder` has the libraries that it
/// needs, or a list of folders with colons between them.
pub fn build_shim(library: ShimmedLibrary, folder: &str, machine: Architecture) -> Vec<u8> {
    build(library, folder, machine, library.known_calls())
}

pub fn build_driver_shim(
    library: ShimmedLibrary,
    calls: &[String],
    machine: Architecture,
) -> Vec<u8> {
    build(library, FOLDER, machine, calls.iter().map(String::as_str))
}

fn build<'a>(
    library: ShimmedLibrary,
    folder: &str,
    machine: Architecture,
    calls: impl Iterator<Item = &'a str>,
) -> Vec<u8> {
    let mut strings = vec![0];
    let [name, ours, real, search] =
        [library.name, LIMITER, library.real, folder].map(|text| append(&mut strings, text));
    let strings_of_loader = strings.len() as u64;
    let calls: Vec<u64> = calls.map(|call| append(&mut strings, call)).collect();
    strings.resize(strings.len().next_multiple_of(8), 0);
    let linked_symbols = STRINGS + strings.len() as u64;
    let section_names = linked_symbols + (1 + calls.len() as u64) * SYMBOL;
    let sections = section_names + SECTION_NAMES.len() as u64;
    let length = sections + u64::from(SECTIONS) * SECTION;
    let mut file = Bytes(Vec::new());
    file.raw(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.u16(&[3, machine.number()]);
    file.u32(&[1]);
    // No entry; segments after this header; sections at the end.
    file.u64(&[0, HEADER, sections]);
    file.u32(&[0]);
    file.u16(&[64, 56, 3, 64, SECTIONS, NAME_SECTION]);
    // The whole file, readable and writable: the loader writes into the dynamic section.
    file.u32(&[1, 6]);
    file.u64(&[0, 0, 0, length, length, PAGE]);
    file.u32(&[2, 6]);
    let dynamic = ENTRIES * ENTRY;
    file.u64(&[DYNAMIC, DYNAMIC, DYNAMIC, dynamic, dynamic, 8]);
    // A stack that is not executable.
    file.u32(&[0x6474_e551, 6]);
    file.u64(&[0, 0, 0, 0, 0, 16]);
    for (tag, value) in [
        (1, ours),
        (1, real),
        (14, name),
        (29, search),
        (4, HASH),
        (5, STRINGS),
        (6, SYMBOLS),
        (10, strings_of_loader),
        (11, SYMBOL),
        (0, 0),
    ] {
        file.u64(&[tag, value]);
    }
    file.u32(&[1, 1, 0, 0]);
    file.raw(&[0; 24]);
    file.raw(&[0; 16]);
    file.raw(&strings);
    // What follows is for linkers. Their symbols begin with an empty one, too.
    file.raw(&[0; 24]);
    for call in calls {
        let start = call | (GLOBAL_FUNCTION << 32) | (CODE_SECTION << 48);
        file.u64(&[start, CODE, 0]);
    }
    file.raw(SECTION_NAMES);
    file.raw(&[0; 64]);
    file.section([1, 3], [2, STRINGS, strings.len() as u64], [0, 0], [1, 0]);
    let size = section_names - linked_symbols;
    let links = [STRING_SECTION, 1];
    file.section([9, 11], [2, linked_symbols, size], links, [8, SYMBOL]);
    let links = [STRING_SECTION, 0];
    file.section([17, 6], [3, DYNAMIC, dynamic], links, [8, ENTRY]);
    file.section([26, 1], [6, CODE, CODE_LENGTH], [0, 0], [16, 0]);
    let size = SECTION_NAMES.len() as u64;
    file.section([32, 3], [0, section_names, size], [0, 0], [1, 0]);
    file.0
}

/// Appends a text to a string table, and returns where it begins.
fn append(strings: &mut Vec<u8>, text: &str) -> u64 {
    let at = strings.len() as u64;
    strings.extend_from_slice(text.as_bytes());
    strings.push(0);
    at
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn u16(&mut self, numbers: &[u16]) {
        for number in numbers {
            self.raw(&number.to_le_bytes());
        }
    }
    fn u32(&mut self, numbers: &[u32]) {
        for number in numbers {
            self.raw(&number.to_le_bytes());
        }
    }
    fn u64(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.raw(&number.to_le_bytes());
        }
    }

    /// A section's header: its name and type; its flags, place and size; the section of its strings
    /// and its first global symbol; its alignment and the size of an entry.
    fn section(
        &mut self,
        start: [u32; 2],
        [flags, place, size]: [u64; 3],
        links: [u32; 2],
        entries: [u64; 2],
    ) {
        self.u32(&start);
        // The address of what is loaded is its place in the file.
        let address = if flags == 0 { 0 } else { place };
        self.u64(&[flags, address, place, size]);
        self.u32(&links);
        self.u64(&entries);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Cursor;

    use super::*;

    #[test]
    fn linkers_find_every_known_call_in_a_shim() {
        for machine in [Architecture::X86_64, Architecture::Aarch64] {
            for library in LIBRARIES {
                let file = build_shim(library, FOLDER, machine);
                let found = exported_calls(library, &mut Cursor::new(file)).expect("calls");
                let known: BTreeSet<&str> = library.known_calls().collect();
                assert!(known.len() > 400, "{}", library.name);
                assert_eq!(found, known.into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn compat_shim_finds_real_library_in_its_own_folder_first() {
        let folders = b"\0/.aliquot/lib/compat-3:/.aliquot/lib\0";
        let file = build_compat_shim(3, Architecture::X86_64);
        assert!(file.windows(folders.len()).any(|text| text == folders));
    }
}
