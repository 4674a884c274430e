//! The names that a Rust file defines, and the names of its tests, found in its tokens.

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `struct`, `enum`, `union`, `trait`, `type`.
    Type,
    /// `fn`.
    Function,
    /// `const`, `static`.
    Constant,
    /// `mod`.
    Module,
    /// Of a struct or a variant.
    Field,
    /// Of an enum.
    Variant,
}

/// A name, with the line on which it is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// From 1.
    pub line: usize,
    /// As written, without `r#`.
    pub text: String,
    /// What it stands for.
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

use Token::{Mark, Text, Word};

/// The tokens of a file.
#[derive(Debug)]
pub struct Source(Vec<(usize, Token)>);

impl Source {
    /// Reads the tokens; comments, numbers, lifetimes and characters are left out.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        while let Some(&c) = chars.get(at) {
            let next = chars.get(at + 1).copied().unwrap_or(' ');
            let start = at;
            let mut token = None;
            if c == '/' && next == '/' {
                at = find(&chars, at, |c| c == '\n');
            } else if c == '/' && next == '*' {
                at = comment_end(&chars, at);
            } else if c == '"' {
                at = text_end(&chars, at + 1);
                token = Some(Text(chars[start + 1..at - 1].iter().collect()));
            } else if c == '\'' {
                at = quote_end(&chars, at);
            } else if is_word(c) {
                at = find(&chars, at, |c| !is_word(c));
                let word: String = chars[start..at].iter().collect();
                let marks = chars[at..].iter().take_while(|c| **c == '#').count();
                let is_raw = ["r", "br", "cr"].contains(&word.as_str());
                if is_raw && chars.get(at + marks) == Some(&'"') {
                    let end = std::iter::once('"').chain(std::iter::repeat_n('#', marks));
                    let end: Vec<char> = end.collect();
                    let first = at + marks + 1;
                    let rest = &chars[first..];
                    let found = rest.windows(end.len()).position(|part| part == end);
                    let length = found.unwrap_or(rest.len());
                    token = Some(Text(rest[..length].iter().collect()));
                    at = (first + length + end.len()).min(chars.len());
                } else if word == "r" && marks == 1 {
                    at += 1; // r#name: the name follows.
                } else if !c.is_ascii_digit() {
                    token = Some(Word(word));
                }
            } else {
                at += 1;
                token = (!c.is_whitespace()).then_some(Mark(c));
            }
            tokens.extend(token.map(|token| (line, token)));
            line += chars[start..at].iter().filter(|c| **c == '\n').count();
        }
        Self(tokens)
    }

    fn word(&self, at: usize) -> Option<&str> {
        match self.0.get(at) {
            Some((_, Word(word))) => Some(word),
            _ => None,
        }
    }

    fn is(&self, at: usize, mark: char) -> bool {
        self.0
            .get(at)
            .is_some_and(|(_, token)| *token == Mark(mark))
    }

    fn name(&self, at: usize, kind: Kind) -> Option<Name> {
        let text = self.word(at)?.to_owned();
        let line = self.0[at].0;
        Some(Name { line, text, kind })
    }

    /// Every name that the file defines, but those of locals, parameters and generics.
    pub fn definitions(&self) -> Vec<Name> {
        let mut found = Vec::new();
        for at in 0..self.0.len() {
            let Some(word) = self.word(at) else { continue };
            // `*const T` is a type.
            let is_pointer = at > 0 && self.is(at - 1, '*');
            let after = at + 1 + usize::from(self.word(at + 1) == Some("mut"));
            let kind = match word {
                "struct" | "enum" | "trait" | "type" => Kind::Type,
                "union" if self.is(after + 1, '{') || self.is(after + 1, '<') => Kind::Type,
                "fn" => Kind::Function,
                "const" | "static" if !is_pointer => Kind::Constant,
                "mod" => Kind::Module,
                _ => continue,
            };
            let keywords = ["fn", "unsafe", "extern", "async", "move", "_"];
            let Some(name) = self.name(after, kind) else {
                continue;
            };
            if keywords.contains(&name.text.as_str()) {
                continue;
            }
            found.push(name);
            let body = self.body(after + 1);
            match (word, body) {
                ("struct" | "union", Some(body)) => self.members(body, Kind::Field, &mut found),
                ("enum", Some(body)) => self.members(body, Kind::Variant, &mut found),
                _ => {}
            }
        }
        found
    }

    /// Where the braces after a type's name open, behind its generics and bounds.
    fn body(&self, mut at: usize) -> Option<usize> {
        if self.is(at, '<') {
            let mut depth = 0_usize;
            loop {
                let is_arrow = at > 0 && self.is(at - 1, '-');
                depth += usize::from(self.is(at, '<'));
                depth -= usize::from(self.is(at, '>') && !is_arrow);
                at += 1;
                if depth == 0 || at >= self.0.len() {
                    break;
                }
            }
        }
        if self.word(at) == Some("where") {
            while at < self.0.len() && !self.is(at, '{') && !self.is(at, ';') {
                at += 1;
            }
        }
        self.is(at, '{').then_some(at)
    }

    /// The fields or variants in the braces that open here, and the variants' own fields.
    fn members(&self, open: usize, kind: Kind, found: &mut Vec<Name>) {
        let mut at = open + 1;
        // A member may begin here.
        let mut begins = true;
        while at < self.0.len() && !self.is(at, '}') {
            if begins && self.is(at, '#') {
                at = self.close(at + 1);
                continue;
            }
            if begins && self.word(at) == Some("pub") {
                at += 1;
                if self.is(at, '(') {
                    at = self.close(at);
                }
                continue;
            }
            let is_field = self.is(at + 1, ':') && !self.is(at + 2, ':');
            if begins && (kind == Kind::Variant || is_field) {
                found.extend(self.name(at, kind));
                if kind == Kind::Variant && self.is(at + 1, '{') {
                    self.members(at + 1, Kind::Field, found);
                }
            }
            begins = self.is(at, ',');
            let opens = ['{', '(', '['].iter().any(|mark| self.is(at, *mark));
            at = if opens { self.close(at) } else { at + 1 };
        }
    }

    /// Behind the bracket that closes the one here.
    fn close(&self, mut at: usize) -> usize {
        let mut depth = 0_usize;
        while let Some((_, token)) = self.0.get(at) {
            match token {
                Mark('{' | '(' | '[') => depth += 1,
                Mark('}' | ')' | ']') => depth = depth.saturating_sub(1),
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        at
    }

    /// The names of the file's tests: functions marked as such, and texts that begin the
    /// arguments of `scenario`, `trial` and `Trial::test`.
    pub fn tests(&self) -> Vec<Name> {
        let mut found = Vec::new();
        for at in 0..self.0.len() {
            let kind = Kind::Function;
            if self.is(at, '#') && self.is(at + 1, '[') {
                let end = self.close(at + 1);
                let path = self.0[at + 2..end - 1]
                    .iter()
                    .take_while(|(_, token)| *token != Mark('('));
                let is_test = path
                    .last()
                    .is_some_and(|(_, last)| *last == Word("test".to_owned()));
                let function = (end..self.0.len()).find(|at| self.word(*at) == Some("fn"));
                found.extend(
                    function
                        .filter(|_| is_test)
                        .and_then(|at| self.name(at + 1, kind)),
                );
            }
            let is_trial = match self.word(at) {
                Some("scenario" | "trial") => true,
                Some("test") => at > 2 && self.word(at - 3) == Some("Trial"),
                _ => false,
            };
            if let (true, true, Some((line, Text(text)))) =
                (is_trial, self.is(at + 1, '('), self.0.get(at + 2))
            {
                let (line, text) = (*line, text.clone());
                found.push(Name { line, text, kind });
            }
        }
        found
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    let rest = chars[from..].iter();
    from + rest.take_while(|c| !is_end(**c)).count()
}

/// Behind a block comment, which may hold others.
fn comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < chars.len() {
        match chars.get(at..at + 2) {
            Some(['/', '*']) => (depth, at) = (depth + 1, at + 2),
            Some(['*', '/']) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Behind the quote that ends a text.
fn text_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += 1 + usize::from(chars[at] == '\\');
    }
    (at + 1).min(chars.len())
}

/// Behind a character, or behind the quote that begins a lifetime's name.
fn quote_end(chars: &[char], at: usize) -> usize {
    match chars.get(at + 1..) {
        Some(['\\', _, rest @ ..]) => at + 4 + rest.iter().take_while(|c| **c != '\'').count(),
        Some([_, '\'', ..]) => at + 3,
        // A lifetime: its name is no word of ours.
        _ => find(chars, at + 1, |c| !(c.is_alphanumeric() || c == '_')),
    }
}
