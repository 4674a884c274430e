//! A value that somebody else wrote, as it may stand in a message, a log line, an event or an
//! annotation: of a long one only the beginning, and how long it is.

use std::fmt::{self, Write as _};

/// The most characters that are repeated.
pub const CHARACTERS: usize = 256;

/// The beginning of a text. Its `Debug` form is quoted, as a string's.
#[derive(Clone, PartialEq, Eq)]
pub struct Excerpt {
    start: Box<str>,
    characters: usize,
}

impl Excerpt {
    /// The excerpt of what a value displays as; the value may be a parser's error, which repeats
    /// what it read.
    pub fn of(value: impl fmt::Display) -> Self {
        let mut read = Reader::default();
        // Only a value that cannot be displayed fails here, and it has a beginning as well.
        let _ = write!(read, "{value}");
        Self {
            start: read.start.into(),
            characters: read.characters,
        }
    }

    pub fn start(&self) -> &str {
        &self.start
    }

    fn length(&self) -> Option<String> {
        let cut = self.characters > CHARACTERS;
        cut.then(|| format!(" ({} characters)", self.characters))
    }
}

impl From<&str> for Excerpt {
    fn from(text: &str) -> Self {
        Self::of(text)
    }
}

#[derive(Default)]
struct Reader {
    start: String,
    characters: usize,
}

impl fmt::Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = CHARACTERS.saturating_sub(self.characters);
        self.start.extend(text.chars().take(room));
        self.characters += text.chars().count();
        Ok(())
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length() {
            None => f.write_str(&self.start),
            Some(length) => write!(f, "{}…{length}", self.start),
        }
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length() {
            None => write!(f, "{:?}", self.start),
            Some(length) => write!(f, "{:?}{length}", format!("{}…", self.start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_at_most_256_characters_and_says_how_many_there_are() {
        let short = Excerpt::from("a\"ü");
        assert_eq!(format!("{short} {short:?}"), r#"a"ü "a\"ü""#);
        let full = "ü".repeat(CHARACTERS);
        assert_eq!(Excerpt::of(&full).to_string(), full);
        let long = Excerpt::of(format_args!("{full}{}", "x".repeat(1000)));
        assert_eq!(long.to_string(), format!("{full}… (1256 characters)"));
        assert_eq!(
            format!("{long:?}"),
            format!("\"{full}…\" (1256 characters)")
        );
    }
}
