//! Flags as users write them, and invalid ones.

use aliquot_core::escape::AGENT_PATHS;

use super::*;

impl Default for Settings {
    fn default() -> Self {
        args(&[]).settings().unwrap()
    }
}

fn args(flags: &[&str]) -> Args {
    Args::try_parse_from([&["aliquot-webhook"], flags].concat()).unwrap()
}

#[test]
fn defaults_match_documented_values() {
    let args = args(&[]);
    assert_eq!(args.settings().unwrap().agent_paths, AGENT_PATHS);
    let lifetimes = args.lifetimes().unwrap();
    assert_eq!(lifetimes.ca, SignedDuration::from_hours(365 * 24));
    let names = args.names().unwrap();
    assert_eq!(names[0], "aliquot-webhook.aliquot-system.svc");
}

#[test]
fn validates_url_and_takes_certificate_name_from_it() {
    for (url, host) in [
        ("https://127.0.0.1:8443/mutate", "127.0.0.1"),
        ("https://[::1]:8443/mutate", "::1"),
        ("https://hook.example.com/mutate", "hook.example.com"),
    ] {
        assert_eq!(args(&["--url", url]).names().unwrap(), [host]);
    }
    for url in [
        "http://h/mutate",
        "https://h/other",
        "h:8443",
        "https://h/mutate?x=1",
    ] {
        let refused = args(&["--url", url]).names().unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("--url {url:?} is invalid; expected: https://HOST:PORT/mutate")
        );
    }
}

#[test]
fn rejects_too_short_and_malformed_lifetimes() {
    let short = args(&["--certificate-lifetime", "1s"])
        .lifetimes()
        .unwrap_err();
    assert_eq!(
        short.to_string(),
        "--certificate-lifetime 1s is too short; expected: at least 3s"
    );
    let soon = ["aliquot-webhook", "--ca-lifetime", "soon"];
    assert!(Args::try_parse_from(soon).is_err());
}
