//! `dashboard`: the cluster page at an address of this machine. What the browser asks for goes to the
//! scheduler on the ways of every other command, so the page needs no token of its own.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::sync::Mutex;

use crate::access::{Access, AccessError, PodRoute};

/// What passes from the browser, and back to it. Nothing else does: no token, and no cookie.
const ASKED: [HeaderName; 4] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
];
const ANSWERED: [HeaderName; 8] = [
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_SECURITY_POLICY,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::VARY,
    LEADS,
];
/// The header by which a replica of the scheduler says whether it leads.
const LEADS: HeaderName = HeaderName::from_static("aliquot-leads");

/// The flags of `dashboard`.
#[derive(Debug, Args)]
pub struct Dashboard {
    /// Port on this machine; 0 chooses a free one
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Only print the address
    #[arg(long)]
    pub no_browser: bool,
    #[command(flatten)]
    pub access: Access,
}

impl Dashboard {
    /// Serves the page until Ctrl-C. `print` gets its address, `note` why no browser was opened.
    pub async fn run(&self, print: impl Fn(&str), note: impl Fn(&str)) -> Result<()> {
        let page = Page::new(self.access.clone())?;
        // Before the user sees an address: whether the scheduler answers at all.
        page.route().await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))
            .await
            .with_context(|| format!("cannot listen on port {}", self.port))?;
        let url = page.url(listener.local_addr()?);
        print(&url);
        if !self.no_browser
            && let Err(why) = open(&url)
        {
            note(&format!(
                "no browser was opened: {why}; open the address above"
            ));
        }
        tokio::select! {
            served = axum::serve(listener, page.router()).into_future() => served?,
            interrupted = ctrl_c() => interrupted?,
        }
        Ok(())
    }
}

/// Starts the desktop's program for addresses.
fn open(url: &str) -> Result<(), String> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else if ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
    {
        "xdg-open"
    } else {
        return Err("neither DISPLAY nor WAYLAND_DISPLAY is set".to_owned());
    };
    let mut command = std::process::Command::new(program);
    command
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
        .spawn()
        .map(drop)
        .map_err(|error| format!("{program}: {error}"))
}

/// The page behind a path that only the user knows: other users and other pages in the browser reach the
/// port, too.
struct Page {
    access: Access,
    secret: String,
    /// The way to the leader, until it fails.
    route: Mutex<Option<PodRoute>>,
}

impl Page {
    fn new(access: Access) -> Result<Arc<Self>> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .context("cannot read /dev/urandom")?;
        Ok(Arc::new(Self {
            access,
            secret: format!("{:032x}", u128::from_ne_bytes(bytes)),
            route: Mutex::default(),
        }))
    }

    fn url(&self, at: SocketAddr) -> String {
        format!("http://{at}/{}/page/", self.secret)
    }

    fn router(self: Arc<Self>) -> Router {
        Router::new().fallback(answer).with_state(self)
    }

    async fn route(&self) -> Result<PodRoute, AccessError> {
        let mut known = self.route.lock().await;
        if let Some(route) = &*known {
            return Ok(route.clone());
        }
        let (route, _) = self.access.answer("/top").await?;
        Ok(known.insert(route).clone())
    }

    /// The scheduler's answer.
    async fn ask(&self, path: &str, headers: &HeaderMap) -> Result<Response> {
        let route = self.route().await?;
        let mut request = http::Request::get(format!("{}{path}", route.path));
        for name in &ASKED {
            for value in headers.get_all(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(kube::client::Body::empty())?;
        let (head, body) = route.client.send(request).await?.into_parts();
        let mut answer = Response::new(Body::new(body));
        *answer.status_mut() = head.status;
        for name in &ANSWERED {
            if let Some(value) = head.headers.get(name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
        Ok(answer)
    }
}

async fn answer(State(page): State<Arc<Page>>, request: Request) -> Response {
    let asked = request
        .uri()
        .path_and_query()
        .map_or("", |path| path.as_str());
    let inside = asked
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(page.secret.as_str()));
    // No path out of the page, however it is written.
    let leaves = |path: &str| path.contains("..") || path.contains('%');
    let Some(path) = inside.filter(|path| path.starts_with("/page/") && !leaves(path)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if request.method() != Method::GET {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let is_good = |answer: &Response| {
        let status = answer.status();
        let leads = answer.headers().get(LEADS);
        (status.is_success() || status == StatusCode::NOT_MODIFIED)
            && leads.is_none_or(|leads| leads != "false")
    };
    if let Ok(answer) = page.ask(path, request.headers()).await
        && is_good(&answer)
    {
        return answer;
    }
    // The leader may be another pod now, and the token may have expired.
    *page.route.lock().await = None;
    match page.ask(path, request.headers()).await {
        Ok(answer) => answer,
        Err(error) => (StatusCode::BAD_GATEWAY, crate::output::message(&error)).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use axum::routing::get;

    use super::*;

    async fn serve(router: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        address
    }

    /// A scheduler whose page has these headers and returns the names of those that it gets.
    async fn scheduler() -> SocketAddr {
        let state = |headers: HeaderMap| async move {
            let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
            names.sort_unstable();
            let set = [(header::ETAG, "\"1\""), (header::SET_COOKIE, "a=b")];
            (set, names.join(" "))
        };
        let router = Router::new()
            .route("/top", get(|| async { "{\"leads\": true}" }))
            .route("/ledger", get(|| async { "{}" }))
            .route("/page/state", get(state));
        serve(router).await
    }

    async fn answer_to(method: Method, url: String) -> (StatusCode, HeaderMap, String) {
        let url: http::Uri = url.parse().unwrap();
        let server = format!("http://{}", url.authority().unwrap());
        let client = crate::access::direct(&server.parse().unwrap()).unwrap();
        let request = http::Request::builder()
            .method(method)
            .uri(url.path())
            .header("if-none-match", "\"0\"")
            .header("aliquot-token", "stolen")
            .header("cookie", "a=b");
        let request = request.body(kube::client::Body::empty()).unwrap();
        let (head, body) = client.send(request).await.unwrap().into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (head.status, head.headers, body)
    }

    #[tokio::test]
    async fn dashboard_forwards_only_the_page_to_who_knows_its_address() {
        let access = Access {
            scheduler: Some(format!("http://{}", scheduler().await).parse().unwrap()),
            ..Access::default()
        };
        let page = Page::new(access).unwrap();
        let address = serve(page.clone().router()).await;
        let url = page.url(address);
        assert_eq!(page.secret.len(), 32);

        let (status, headers, seen) = answer_to(Method::GET, format!("{url}state")).await;
        assert_eq!(status, StatusCode::OK, "{seen}");
        assert_eq!(headers[header::ETAG], "\"1\"");
        assert!(!headers.contains_key(header::SET_COOKIE));
        assert!(seen.contains("if-none-match"), "{seen}");
        assert!(
            !seen.contains("aliquot-token") && !seen.contains("cookie"),
            "{seen}"
        );

        let status = async |method, url| answer_to(method, url).await.0;
        let outside = format!("http://{address}/page/state");
        let other = format!("http://{address}/{}/ledger", page.secret);
        for url in [outside, other, format!("{url}../ledger")] {
            assert_eq!(status(Method::GET, url).await, StatusCode::NOT_FOUND);
        }
        let written = status(Method::POST, format!("{url}state")).await;
        assert_eq!(written, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[tokio::test]
    async fn dashboard_follows_the_leader_to_another_replica() {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&searches);
        let top = async move || {
            counted.fetch_add(1, Relaxed);
            "{\"leads\": true}"
        };
        let router = Router::new()
            .route("/top", get(top))
            .route("/page/state", get(|| async { ([(LEADS, "false")], "{}") }));
        let access = Access {
            scheduler: Some(format!("http://{}", serve(router).await).parse().unwrap()),
            ..Access::default()
        };
        let page = Page::new(access).unwrap();
        let url = page.url(serve(page.clone().router()).await);
        let (status, _, text) = answer_to(Method::GET, format!("{url}state")).await;
        assert_eq!((status, &*text), (StatusCode::OK, "{}"));
        assert_eq!(searches.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn dashboard_reports_scheduler_that_does_not_answer() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", nobody.local_addr().unwrap());
        drop(nobody);
        let access = Access {
            scheduler: Some(url.parse().unwrap()),
            ..Access::default()
        };
        let dashboard = Dashboard {
            port: 0,
            no_browser: true,
            access,
        };
        let error = dashboard
            .run(|url| panic!("{url}"), |_| ())
            .await
            .unwrap_err();
        assert!(
            error.to_string().starts_with("cannot reach http"),
            "{error}"
        );
    }
}
