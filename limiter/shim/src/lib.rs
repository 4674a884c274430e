//! Shim libraries: ELF files without code that carry the name of a driver's library and need two
//! others, first `libvgpu.so` and then the real one under another name. A symbol lookup in a shim
//! finds ours if we have one, and else the driver's.
//!
//! The files are built in memory, without a linker.

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
}

/// All replaced libraries.
pub const LIBRARIES: [ShimmedLibrary; 2] = [
    ShimmedLibrary {
        name: "libcuda.so.1",
        real: "libcuda-real.so.1",
    },
    ShimmedLibrary {
        name: "libnvidia-ml.so.1",
        real: "libnvidia-ml-real.so.1",
    },
];

/// The number of shims for CUDA drivers that an image brings itself, each with a real library of its
/// own.
pub const COMPAT_LIBRARIES: usize = 8;

/// The folder in [`FOLDER`] with the real library of such a shim.
pub fn compat_folder(index: usize) -> String {
    format!("compat-{index}")
}

/// The file name of such a shim.
pub fn compat_shim(index: usize) -> String {
    format!("compat-{index}.so")
}

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Intel and AMD, 64 bits.
    X86_64,
    /// ARM, 64 bits.
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
/// One hash bucket for the one symbol, the empty one.
const HASH: u64 = DYNAMIC + ENTRIES * ENTRY;
const SYMBOLS: u64 = HASH + 16;
const SYMBOL: u64 = 24;
const STRINGS: u64 = SYMBOLS + SYMBOL;
/// The largest page size of both architectures.
const PAGE: u64 = 0x1_0000;

/// Builds the shim for a CUDA driver that an image brings itself.
pub fn build_compat_shim(index: usize, machine: Architecture) -> Vec<u8> {
    let folders = format!("{FOLDER}/{}:{FOLDER}", compat_folder(index));
    build_shim(LIBRARIES[0], &folders, machine)
}

/// Builds the shim for `library`; `folder` has the libraries that it needs, or a list of folders with
/// colons between them.
pub fn build_shim(library: ShimmedLibrary, folder: &str, machine: Architecture) -> Vec<u8> {
    let mut strings = vec![0];
    let [name, ours, real, search] = [library.name, LIMITER, library.real, folder].map(|text| {
        let at = strings.len() as u64;
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at
    });
    let length = STRINGS + strings.len() as u64;
    let mut file = Bytes(Vec::new());
    file.raw(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.u16(&[3, machine.number()]);
    file.u32(&[1]);
    // No entry; segments after this header; no sections.
    file.u64(&[0, HEADER, 0]);
    file.u32(&[0]);
    file.u16(&[64, 56, 3, 64, 0, 0]);
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
        (10, strings.len() as u64),
        (11, SYMBOL),
        (0, 0),
    ] {
        file.u64(&[tag, value]);
    }
    file.u32(&[1, 1, 0, 0]);
    file.raw(&[0; 24]);
    file.raw(&strings);
    file.0
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_elf_sections_at_header_offsets() {
        for machine in [Architecture::X86_64, Architecture::Aarch64] {
            let file = build_shim(LIBRARIES[0], FOLDER, machine);
            assert_eq!(&file[..4], b"\x7fELF");
            assert_eq!(file[18..20], machine.number().to_le_bytes());
            let strings = usize::try_from(STRINGS).unwrap();
            let text = String::from_utf8(file[strings..].to_vec()).unwrap();
            let names: Vec<&str> = text.split('\0').collect();
            let expected = ["", "libcuda.so.1", LIMITER, "libcuda-real.so.1", FOLDER, ""];
            assert_eq!(names, expected);
            let length = u64::from_le_bytes(file[96..104].try_into().unwrap());
            assert_eq!(length, file.len() as u64);
        }
    }

    #[test]
    fn compat_shim_finds_real_library_in_its_own_folder_first() {
        let file = build_compat_shim(3, Architecture::X86_64);
        let folders = b"\0/.aliquot/lib/compat-3:/.aliquot/lib\0";
        assert!(file.ends_with(folders));
        assert_ne!(file, build_compat_shim(4, Architecture::X86_64));
    }
}
