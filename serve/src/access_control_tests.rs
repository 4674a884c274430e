//! What a guarded router answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_core::access::Forbidden;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::*;

/// The token `good` may get `/metrics` and below it, `other` may not, and `away` is never reviewed. Counts
/// reviews.
fn control() -> (AccessControl, Arc<AtomicUsize>) {
    let reviews = Arc::new(AtomicUsize::new(0));
    let counted = reviews.clone();
    let review = move |token: String, path: String| -> Reviewed {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match &*token {
                "good" if path.starts_with("/metrics") => Ok(Access::Allowed),
                "good" | "other" => Ok(Access::Forbidden(Forbidden {
                    account: token,
                    path,
                })),
                "away" => Err("the API server does not answer".to_owned()),
                _ => Ok(Access::Unauthenticated),
            }
        })
    };
    let control = AccessControl::new(review, ["/style.css".to_owned()]).unwrap();
    (control, reviews)
}

fn router() -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/style.css", get(|| async { "open" }))
        .route("/top", get(|| async { "secret" }))
        .route("/metrics", get(|| async { "secret" }))
}

/// The status and the text of the response to a request with this header.
async fn ask(control: &AccessControl, path: &str, (name, value): (&str, &str)) -> (u16, String) {
    let request = Request::get(path).header(name, value);
    let request = request.body(Body::empty()).unwrap();
    let response = control.clone().guard(router()).oneshot(request).await;
    let response = response.unwrap();
    let status = response.status().as_u16();
    let asks = response.headers().get(header::WWW_AUTHENTICATE);
    assert_eq!(asks.is_some_and(|how| how == "Bearer"), status == 401);
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn answers_only_health_and_open_paths_without_token() {
    let (control, reviews) = control();
    let none = ("accept", "*/*");
    for path in ["/healthz", "/style.css"] {
        assert_eq!(ask(&control, path, none).await.0, 200, "{path}");
    }
    for path in ["/metrics", "/top", "/unknown", "/healthz/"] {
        let (status, text) = ask(&control, path, none).await;
        assert!(status == 401 && !text.contains("secret"), "{path}: {text}");
    }
    assert_eq!(reviews.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn answers_what_the_account_of_the_token_may_get() {
    let (control, _) = control();
    let bearer = |token| ("authorization", token);
    for (path, header, status, text) in [
        ("/metrics", bearer("Bearer good"), 200, "secret"),
        ("/metrics", ("Aliquot-Token", "good"), 200, "secret"),
        ("/top", bearer("Bearer good"), 403, "good may not get /top"),
        ("/metrics", bearer("Bearer other"), 403, "other may not"),
        ("/metrics", bearer("Bearer x"), 401, "not of any account"),
        ("/metrics", bearer("Basic good"), 401, "requires a token"),
        ("/metrics", bearer("Bearer away"), 503, "does not answer"),
    ] {
        let (found, answer) = ask(&control, path, header).await;
        assert!(
            found == status && answer.contains(text),
            "{path} with {header:?}: {found} {answer}"
        );
    }
}

#[tokio::test]
async fn reviews_a_token_and_path_once_in_a_while() {
    let (control, reviews) = control();
    for token in ["good", "x"] {
        for _ in 0..5 {
            ask(&control, "/metrics", (TOKEN_HEADER, token)).await;
        }
    }
    assert_eq!(reviews.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn remembers_a_bounded_number_of_reviews() {
    let (control, _) = control();
    let question = |token: String| (token, "/metrics".to_owned());
    let good = question("good".to_owned());
    control.review(good.clone()).await.unwrap();
    for number in 0..3 * REMEMBERED {
        let bad = question(format!("bad-{number}"));
        control.review(bad).await.unwrap();
    }
    let reviews = control.0.reviews.lock();
    assert!(reviews.len() <= REMEMBERED, "{}", reviews.len());
    assert!(reviews.contains_key(&good));
}

#[tokio::test]
async fn account_with_many_paths_has_no_other_reviewed_again() {
    let (control, reviews) = control();
    for number in 0..REMEMBERED {
        let path = format!("/metrics/{number}");
        control.access("good", &path).await.unwrap();
    }
    for _ in 0..5 {
        control.access("good", "/metrics").await.unwrap();
    }
    assert_eq!(reviews.load(Ordering::Relaxed), REMEMBERED + 1);
}

#[tokio::test]
async fn answers_only_over_tls() {
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (control, stop) = (control().0, CancellationToken::new());
    tokio::spawn(serve(listener, router(), Some(control), stop));
    let mut plain = TcpStream::connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    plain.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Either a TLS alert or a closed connection.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}
