//! A list in pages. One page is read while the next one arrives: of 100,000 pods, reading takes far
//! longer than fetching.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::pin;

use futures::AsyncBufReadExt as _;
use kube::api::{ListMeta, ListParams, Request};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// All objects that `params` selects, in the list's order, and the list's version. `read` reads
/// them on blocking threads; `page_read` is called after each page. At most two pages are in memory.
pub(crate) async fn list<W, E>(
    api: &Api<W>,
    mut params: ListParams,
    read: impl Fn(W) -> E + Clone + Send + 'static,
    page_read: impl Fn(),
) -> kube::Result<(Vec<E>, Option<String>)>
where
    W: Resource + Clone + DeserializeOwned + 'static,
    E: Send + 'static,
{
    let (client, mut size) = (api.clone().into_client(), 0);
    let lost = |error: JoinError| kube::Error::Service(error.into());
    let mut all = Vec::new();
    let mut reading: Option<JoinHandle<serde_json::Result<Vec<E>>>> = None;
    loop {
        let page = fetch(&client, api.resource_url(), &params, size).await?;
        size = page.len();
        let about = metadata(&page).map_err(kube::Error::SerdeError)?;
        params.continue_token = about.continue_.filter(|token| !token.is_empty());
        let is_last = params.continue_token.is_none();
        let read = read.clone();
        let read_page = move || objects(&page, read).map_err(|error| named(&error, &page));
        let before = reading.replace(spawn_blocking(read_page));
        let newest = if is_last { reading.take() } else { None };
        for page in [before, newest].into_iter().flatten() {
            let entries = page.await.map_err(lost)?;
            all.extend(entries.map_err(kube::Error::SerdeError)?);
            page_read();
        }
        if is_last {
            return Ok((all, about.resource_version));
        }
    }
}

/// A page, which is probably of this size: [`Client::request_text`] would copy it twice.
async fn fetch(
    client: &Client,
    url: &str,
    params: &ListParams,
    size: usize,
) -> kube::Result<String> {
    let request = Request::new(url).list(params);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let mut arriving = pin!(client.request_stream(request).await?);
    let mut page = Vec::with_capacity(size);
    loop {
        let chunk = arriving.fill_buf().await.map_err(cause)?;
        let arrived = chunk.len();
        if arrived == 0 {
            return String::from_utf8(page).map_err(kube::Error::FromUtf8);
        }
        page.extend_from_slice(chunk);
        arriving.consume_unpin(arrived);
    }
}

/// The error that ended a stream.
fn cause(error: io::Error) -> kube::Error {
    error.downcast().unwrap_or_else(kube::Error::ReadEvents)
}

/// What a page says of its list. API servers write that before the objects, which then are not read
/// for it.
fn metadata(page: &str) -> serde_json::Result<ListMeta> {
    #[derive(Deserialize)]
    struct Head {
        metadata: Option<ListMeta>,
    }
    let head = page.split_once(r#","items":["#).and_then(|(head, _)| {
        let head: Head = serde_json::from_str(&format!("{head}}}")).ok()?;
        head.metadata
    });
    if let Some(metadata) = head {
        return Ok(metadata);
    }
    let whole: Head = serde_json::from_str(page)?;
    Ok(whole.metadata.unwrap_or_default())
}

/// The objects of a page, each read before the next one is decoded: its memory, of which little
/// stays, is used again at once.
fn objects<W, E>(page: &str, read: impl Fn(W) -> E) -> serde_json::Result<Vec<E>>
where
    W: DeserializeOwned,
{
    let mut page = serde_json::Deserializer::from_str(page);
    let object = PhantomData::<W>;
    let all = page.deserialize_map(Objects { read, object })?;
    page.end()?;
    Ok(all)
}

/// Names the object that could not be read: the last one with a name before that place.
fn named(error: &serde_json::Error, page: &str) -> serde_json::Error {
    let before = page.get(..error.column()).unwrap_or_default();
    let at = before.rsplit_once(r#""metadata":{"name":""#);
    let name = at.and_then(|(_, text)| text.split('"').next());
    Error::custom(format_args!("object {}: {error}", name.unwrap_or("?")))
}

/// Decodes a page, and then its field `items`.
struct Objects<W, R> {
    read: R,
    object: PhantomData<W>,
}

impl<'de, W, E, R> DeserializeSeed<'de> for Objects<W, R>
where
    W: Deserialize<'de>,
    R: Fn(W) -> E,
{
    type Value = Vec<E>;

    fn deserialize<D: Deserializer<'de>>(self, items: D) -> Result<Vec<E>, D::Error> {
        items.deserialize_any(self)
    }
}

impl<'de, W, E, R> Visitor<'de> for Objects<W, R>
where
    W: Deserialize<'de>,
    R: Fn(W) -> E,
{
    type Value = Vec<E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut page: A) -> Result<Vec<E>, A::Error> {
        while let Some(field) = page.next_key::<String>()? {
            if field == "items" {
                let all = page.next_value_seed(self)?;
                while page.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(all);
            }
            page.next_value::<IgnoredAny>()?;
        }
        Err(A::Error::missing_field("items"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<E>, A::Error> {
        let mut all = Vec::new();
        while let Some(object) = items.next_element::<W>()? {
            all.push((self.read)(object));
        }
        Ok(all)
    }

    fn visit_unit<N: Error>(self) -> Result<Vec<E>, N> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use tower_test::mock;

    use super::*;

    /// Lists these pages; returns the names, the version, and what was asked for each page.
    async fn listed(pages: &[&str]) -> (kube::Result<(Vec<String>, Option<String>)>, Vec<String>) {
        let (service, mut server) = mock::pair::<http::Request<Body>, Response<Body>>();
        let api: Api<ConfigMap> = Api::all(Client::new(service, "d"));
        let listing = tokio::spawn(async move {
            let params = ListParams::default().limit(2);
            let name = |object: ConfigMap| object.metadata.name.unwrap_or_default();
            list(&api, params, name, || {}).await
        });
        let mut asked = Vec::new();
        for page in pages {
            let (request, answer) = server.next_request().await.unwrap();
            asked.push(request.uri().query().unwrap_or_default().to_owned());
            answer.send_response(Response::new(Body::from(page.as_bytes().to_vec())));
        }
        (listing.await.unwrap(), asked)
    }

    #[tokio::test]
    async fn lists_every_page_in_order_wherever_it_names_the_next_one() {
        let (found, asked) = listed(&[
            r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"x"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#,
            r#"{"apiVersion":"v1","items":[{"metadata":{"name":"c"},"data":{"a":"\",\"items\":["}}],"metadata":{"resourceVersion":"7","continue":"y"}}"#,
            r#"{"metadata":{"resourceVersion":"7","continue":""},"items":[{"metadata":{"name":"d"}}]}"#,
        ])
        .await;
        let (names, version) = found.unwrap();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(version.as_deref(), Some("7"));
        let expected = ["limit=2", "limit=2&continue=x", "limit=2&continue=y"];
        for (asked, expected) in asked.iter().zip(expected) {
            assert!(asked.ends_with(expected), "{asked}");
        }
    }

    #[tokio::test]
    async fn one_page_that_cannot_be_read_ends_the_list() {
        let (found, _) = listed(&[
            r#"{"metadata":{"resourceVersion":"7","continue":"x"},"items":[{"metadata":{"name":"a"},"data":1}]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#,
        ])
        .await;
        let text = found.unwrap_err().to_string();
        let named = text.starts_with("Error deserializing response: object a: ");
        assert!(named, "{text}");
    }
}
