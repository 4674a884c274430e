//! `kubectl-aliquot` as a process: which namespace it asks for, as kubectl would, and its exit codes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use aliquot_cli::complete::NAME;
use serde_json::json;
use tempfile::TempDir;

/// Contexts of a kubeconfig: each with its namespace.
const CONTEXTS: [(&str, Option<&str>); 3] =
    [("team", Some("team")), ("plain", None), ("empty", Some(""))];

/// The pod that is there once one is created.
const PROBE: &str = "/pods/probe";

/// The namespace with a pod whose managed fields nobody can read.
const ODD: &str = "/namespaces/odd/";

/// Answers every request with an empty list, or a pod that does not start, and keeps the requests' first lines, and
/// for whom each was sent.
struct ApiServer {
    address: SocketAddr,
    requests: Receiver<String>,
}

impl ApiServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let (seen, requests) = channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.expect("a connection");
                let mut reader = BufReader::new(&connection);
                let mut lines = reader.by_ref().lines().map_while(Result::ok);
                let mut first = lines.next().unwrap_or_default();
                let mut length = 0;
                for line in lines.take_while(|line| !line.is_empty()) {
                    if let Some(user) = line.strip_prefix("impersonate-user: ") {
                        first = format!("{first} as {user}");
                    }
                    if let Some(number) = line.strip_prefix("content-length: ") {
                        length = number.parse().expect("a number");
                    }
                }
                // A connection that ends with unread data is reset.
                let _ = std::io::copy(&mut reader.take(length), &mut std::io::sink());
                let creates = first.starts_with("POST") && !first.contains("dryRun");
                let body = if creates || first.contains(PROBE) {
                    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"probe"}}"#
                } else if first.contains(ODD) {
                    r#"{"apiVersion":"v1","kind":"List","metadata":{},"items":[{"metadata":{
                        "name":"p","managedFields":[{"time":"9999-12-31T23:59:59Z"}]}}]}"#
                } else {
                    r#"{"apiVersion":"v1","kind":"List","metadata":{},"items":[]}"#
                };
                if seen.send(first).is_err() {
                    // The test is over.
                    return;
                }
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                let length = body.len();
                let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
                // A client that has ended reads no answer.
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        Self { address, requests }
    }

    fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let contexts = CONTEXTS.map(|(name, namespace)| {
            let mut context = json!({"cluster": "here", "user": "me"});
            if let Some(namespace) = namespace {
                context["namespace"] = json!(namespace);
            }
            json!({"name": name, "context": context})
        });
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "team", "contexts": contexts,
            "clusters": [{"name": "here", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "me", "user": {}}],
        });
        let path = folder.join("kubeconfig");
        std::fs::write(&path, file.to_string()).expect("written");
        path
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<String> {
        self.requests.try_iter().collect()
    }
}

/// The program in a home directory without a kubeconfig.
fn program(home: &TempDir, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-aliquot"));
    command.args(words.split(' ')).env("HOME", home.path());
    for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "ALIQUOT_SCHEDULER"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("started")
}

#[test]
fn asks_in_namespace_of_context_or_flag() {
    let home = tempfile::tempdir().expect("a folder");
    let server = ApiServer::start();
    let kubeconfig = server.kubeconfig(home.path());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    let manifest = home.path().join("pod.json");
    std::fs::write(&manifest, pod.to_string()).expect("written");
    let direct = format!("--scheduler http://{}", server.address);
    let explain = format!("explain p {direct}");
    let check = |words: &str, expected: &str| {
        let mut command = program(&home, words);
        let output = run(command.env("KUBECONFIG", &kubeconfig));
        let seen = server.requests();
        let asked = seen.iter().any(|line| line.starts_with(expected));
        assert!(asked, "{words}: {expected} is not in {seen:#?}: {output:?}");
    };
    for (flags, namespace) in [
        ("", "team"),
        (" -n other", "other"),
        (" --context plain", "default"),
        (" --context empty", "default"),
        (" --context plain --namespace other", "other"),
    ] {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        check(
            &format!("{explain}{flags}"),
            &format!("GET /explain/{namespace}/p "),
        );
        check(
            &format!("resize pod/p --gpucores 5{flags}"),
            &format!("GET {pods}/p "),
        );
        check(&format!("top pods{flags}"), &format!("GET {pods}?"));
        check(
            &format!("doctor{flags}"),
            &format!("POST {pods}?&dryRun=All"),
        );
    }
    server.requests();
    run(program(&home, "top pods --as ana").env("KUBECONFIG", &kubeconfig));
    let seen = server.requests();
    let as_ana = seen.iter().all(|line| line.ends_with(" as ana"));
    assert!(as_ana && !seen.is_empty(), "{seen:#?}");
    check("top pods -A", "GET /api/v1/pods?");
    check("top po -A -n other", "GET /api/v1/pods?");

    let words = format!("explain -o json -f {}", manifest.display());
    let mut command = program(&home, &words);
    let output = run(command.env("KUBECONFIG", &kubeconfig));
    let answer = text(&output.stdout);
    assert!(answer.contains(r#""namespace": "team""#), "{output:?}");

    // The pod's node and its GPUs are not asked for where there is no pod.
    let mut command = program(&home, "top pods");
    let output = run(command.env("KUBECONFIG", &kubeconfig));
    assert_eq!(
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr)
        ),
        (
            Some(0),
            "",
            "No pods with a share found in namespace team\n"
        )
    );
    // Whoever may patch a pod may write such a time there.
    let mut command = program(&home, "top pods -n odd");
    let output = run(command.env("KUBECONFIG", &kubeconfig));
    assert!(output.status.success(), "{output:?}");
    // Of several kubeconfigs, some may be missing or name no context.
    let gone = home.path().join("gone");
    let unnamed = home.path().join("unnamed");
    std::fs::write(&unnamed, r#"{"kind": "Config", "current-context": ""}"#).expect("written");
    let several = std::env::join_paths([&gone, &unnamed, &kubeconfig]).expect("a list");
    let output = run(program(&home, "top pods").env("KUBECONFIG", several));
    assert_eq!(
        text(&output.stderr),
        "No pods with a share found in namespace team\n"
    );
    // The scheduler's address needs no kubeconfig; kubectl's namespace without one is default.
    server.requests();
    run(&mut program(&home, &explain));
    assert_eq!(server.requests(), ["GET /explain/default/p HTTP/1.1"]);
}

#[test]
fn completes_names_of_the_cluster_that_the_words_name() {
    let home = tempfile::tempdir().expect("a folder");
    let server = ApiServer::start();
    let kubeconfig = server.kubeconfig(home.path());
    let link = home.path().join(NAME);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kubectl-aliquot"), &link).expect("linked");
    let complete = |words: &str| {
        let mut command = Command::new(&link);
        command.args(words.split(' '));
        let output = run(command.env("KUBECONFIG", &kubeconfig));
        (text(&output.stdout).to_owned(), server.requests())
    };
    let (contexts, _) = complete("top --context ");
    assert_eq!(contexts, "team\nplain\nempty\n:4\n");
    for (words, path) in [
        ("explain ", "namespaces/team/pods?"),
        ("explain --context plain ", "namespaces/default/pods?"),
        ("resize -n other ", "namespaces/other/pods?"),
        ("doctor node ", "nodes?"),
        ("top pods -n ", "namespaces?"),
    ] {
        let (names, seen) = complete(words);
        let expected = format!("GET /api/v1/{path}");
        let asked = seen.iter().any(|line| line.starts_with(&expected));
        assert!(asked && names == ":4\n", "{words}: {names}, {seen:#?}");
    }
}

#[test]
fn reports_missing_context_and_missing_kubeconfig() {
    let home = tempfile::tempdir().expect("a folder");
    let kubeconfig = ApiServer::start().kubeconfig(home.path());
    let check = |command: &mut Command, expected: &str| {
        let output = run(command);
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{command:?}: {error}");
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(1), ""),
            "{command:?}"
        );
    };
    let direct = "--scheduler http://127.0.0.1:1";
    for words in ["top pods", "explain p", &*format!("explain p {direct}")] {
        let words = format!("{words} --context gone");
        check(
            program(&home, &words).env("KUBECONFIG", &kubeconfig),
            "Error: the kubeconfig has no context \"gone\"; expected for --context: team, plain, empty\n",
        );
        // A flag that names something that is missing is never replaced by the account of the pod.
        check(
            program(&home, &words).env("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            "Error: cannot read the kubeconfig: ",
        );
    }
    for (flag, known) in [("cluster", "here"), ("user", "me")] {
        let words = format!("top pods --{flag} gone");
        check(
            program(&home, &words).env("KUBECONFIG", &kubeconfig),
            &format!(
                "Error: the kubeconfig has no {flag} \"gone\"; expected for --{flag}: {known}\n"
            ),
        );
    }
    for words in ["top pods", "doctor", "resize p --gpucores 5"] {
        let expected = "No such file or directory (os error 2); set --kubeconfig or KUBECONFIG\n";
        check(&mut program(&home, words), expected);
        let mut in_pod = program(&home, words);
        in_pod.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
        check(
            in_pod.env("KUBERNETES_SERVICE_PORT", "1"),
            "Error: there is no kubeconfig, and the pod's service account cannot be used: ",
        );
    }
}

#[test]
fn exits_with_1_where_anything_is_found_or_nothing_is_checked() {
    let home = tempfile::tempdir().expect("a folder");
    let server = ApiServer::start();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = ApiServer {
        address: nobody.local_addr().expect("its address"),
        requests: channel().1,
    };
    drop(nobody);
    let check = |server: &ApiServer, words: &str, code: i32, last: &str, error: &str| {
        let kubeconfig = server.kubeconfig(home.path());
        let mut command = program(&home, words);
        let output = run(command.env("KUBECONFIG", kubeconfig));
        let printed = text(&output.stdout).lines().last().unwrap_or_default();
        assert!(printed.starts_with(last), "{words}: {output:?}");
        assert!(
            text(&output.stderr).starts_with(error),
            "{words}: {output:?}"
        );
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
    };
    // An empty cluster has no GPU, and no part of Aliquot.
    let before = "preflight --from hami";
    check(&server, before, 1, "0 problems, 1 warning", "");
    check(&server, "doctor", 1, "2 problems", "");
    let waits = "doctor --wait --timeout 1";
    check(
        &server,
        waits,
        1,
        "2 problems",
        "not well after 1 s; still missing: ",
    );
    let nothing = "Error: nothing could be checked";
    check(&silent, "doctor", 1, "0 problems, 0 warnings, ", nothing);
    check(&silent, before, 1, "0 problems, 0 warnings, ", nothing);
    let unread = "cannot list the scheduler's pods: ";
    check(&silent, "top", 1, "", unread);
}

#[test]
fn ctrl_c_leaves_no_probe_pod() {
    let home = tempfile::tempdir().expect("a folder");
    let server = ApiServer::start();
    let kubeconfig = server.kubeconfig(home.path());
    let mut command = program(&home, "doctor node n --probe-image i");
    command
        .env("KUBECONFIG", &kubeconfig)
        .stdout(Stdio::piped());
    let child = command.spawn().expect("started");
    let mut seen: Vec<String> = Vec::new();
    while !seen.iter().any(|line| line.contains(PROBE)) {
        let next = server.requests.recv_timeout(Duration::from_mins(1));
        seen.push(next.unwrap_or_else(|error| panic!("{error} after {seen:#?}")));
    }
    let mut kill = Command::new("kill");
    kill.args(["-INT", &child.id().to_string()]);
    assert!(run(&mut kill).status.success());
    let output = child.wait_with_output().expect("ended");
    seen.extend(server.requests());
    for namespace in ["team", "aliquot-system"] {
        let deletes = format!("DELETE /api/v1/namespaces/{namespace}{PROBE}");
        let is_removed = seen.iter().any(|line| line.starts_with(&deletes));
        assert!(is_removed, "{deletes}: {seen:#?}, {output:?}");
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn exits_with_2_only_where_the_command_line_is_invalid() {
    let home = tempfile::tempdir().expect("a folder");
    for (words, expected) in [
        ("top pods --gone", "--gone"),
        ("top nodes -n team", "nodes and GPUs have no namespace"),
        ("top gpus -A", "with top pods only"),
        ("top pods --request-timeout soon", "such as 10s"),
        ("explain default/p", "the namespace in --namespace"),
        ("doctor --wait --security", "cannot be used with"),
    ] {
        let output = run(&mut program(&home, words));
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{words}: {error}");
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(2), ""),
            "{words}"
        );
    }
}
