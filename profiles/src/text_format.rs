//! Formats of strings in a configuration. A format's pattern accepts at least what its function does.

use aliquot_core::mig;

#[derive(Clone, Copy, Debug)]
pub struct TextFormat {
    /// In words, for messages.
    pub expectation: &'static str,
    /// As a regular expression, for the JSON schema.
    pub pattern: &'static str,
    /// Whether a string has this format.
    pub matches: fn(&str) -> bool,
}

/// The name of a profile: any label value.
pub const NAME: TextFormat = TextFormat {
    expectation: "1 to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
    pattern: "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    matches: is_name,
};
/// The key of a node's label.
pub const LABEL_KEY: TextFormat = TextFormat {
    expectation: "a label key, such as pool or example.com/pool",
    pattern: "^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    matches: is_label_key,
};
/// The value of a node's label.
pub const LABEL_VALUE: TextFormat = TextFormat {
    expectation: "a label value, quoted if it looks like a number or a boolean",
    pattern: "^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$",
    matches: |text| text.is_empty() || is_name(text),
};
pub const NAMESPACE: TextFormat = TextFormat {
    expectation: "a namespace: 1 to 63 lower-case letters, digits and '-', not starting or ending with '-'",
    pattern: "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    matches: is_namespace,
};
pub const RESOURCE: TextFormat = TextFormat {
    expectation: "a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared, but no nvidia.com/mig-...",
    pattern: "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    // Scheduler and webhook know instances by these names.
    matches: |text| text.contains('/') && is_label_key(text) && !text.starts_with(mig::RESOURCES),
};
pub const UUID: TextFormat = TextFormat {
    expectation: "a GPU's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)",
    pattern: "^GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    matches: is_uuid,
};
/// A pattern for product names.
pub const GLOB: TextFormat = TextFormat {
    expectation: "a product as the driver names it, with * for any text and ? for any character, such as *A100*",
    pattern: "^.{1,128}$",
    matches: |text| (1..=128).contains(&text.chars().count()) && !text.contains('\n'),
};
pub const MIG_PROFILE: TextFormat = TextFormat {
    expectation: "a MIG profile such as 1g.10gb, 1g.10gb+me or 3g.40gb",
    pattern: "^[1-7]g\\.[1-9][0-9]{0,2}gb([+-](me|me\\.all|gfx))*$",
    matches: |text| compute_slices(text).is_some(),
};
pub const TIME: TextFormat = TextFormat {
    expectation: "a duration such as 30s, 10m or 2h, at most 168h",
    pattern: "^[1-9][0-9]{0,5}[smh]$",
    matches: |text| seconds(text).is_some(),
};
pub const ANY: TextFormat = TextFormat {
    expectation: "text",
    pattern: "",
    matches: |_| true,
};

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(inner)
}

fn is_namespace(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && ends && text.bytes().all(inner)
}

fn is_label_key(text: &str) -> bool {
    let (domain, name) = text
        .split_once('/')
        .map_or((None, text), |(domain, name)| (Some(domain), name));
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    let good = |domain: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(|b| inner(*b) && b.is_ascii_alphanumeric());
        let bytes = domain.as_bytes();
        bytes.len() <= 253
            && ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| inner(*b))
    };
    domain.is_none_or(good) && is_name(name)
}

fn is_uuid(text: &str) -> bool {
    let Some(parts) = text.strip_prefix("GPU-") else {
        return false;
    };
    let parts: Vec<&str> = parts.split('-').collect();
    let hex = |part: &&str| part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(hex)
}

/// The compute slices in a MIG profile's name, 1 to 7.
pub fn compute_slices(profile: &str) -> Option<u32> {
    let (compute, rest) = profile.split_once("g.")?;
    let (memory, extras) = rest.split_once("gb")?;
    let compute: u32 = compute.parse().ok().filter(|_| compute.len() == 1)?;
    let number = memory.len() <= 3 && memory.bytes().all(|b| b.is_ascii_digit());
    let known = |extras: &str| {
        let mut left = extras;
        while let Some(word) = left.strip_prefix(['+', '-']) {
            let mut next = ["me.all", "me", "gfx"].iter();
            let Some(next) = next.find_map(|w| word.strip_prefix(w)) else {
                return false;
            };
            left = next;
        }
        left.is_empty()
    };
    let good = (1..=7).contains(&compute) && number && !memory.starts_with('0');
    (good && !memory.is_empty() && known(extras)).then_some(compute)
}

/// A duration such as `30m` in seconds.
pub fn seconds(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let plain =
        number.len() <= 6 && !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| plain)?;
    let seconds = number * factor;
    (seconds <= 168 * 3600).then_some(seconds)
}
