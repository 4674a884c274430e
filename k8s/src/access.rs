//! Asks the API server who a token's account is, and whether the account may get a path: a
//! `TokenReview` and a `SubjectAccessReview`, as in kube-rbac-proxy. Why a pod waits may also be read by whoever
//! may get the pod.

use std::pin::Pin;
use std::time::Duration;

use aliquot_core::access::{Access, Forbidden, explained_pod};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::timeout;

/// Deadline of a review: others wait for their turn behind it.
const DEADLINE: Duration = Duration::from_secs(5);

/// The answer to a review, or why there is none.
pub type Reviewed = Pin<Box<dyn Future<Output = Result<Access, String>> + Send>>;

/// Reviews with this client, for a server that knows no API server.
pub fn reviewer(client: Client) -> impl Fn(String, String) -> Reviewed + Send + Sync + 'static {
    move |token, path| {
        let client = client.clone();
        Box::pin(async move {
            let why = match timeout(DEADLINE, review(&client, token, path)).await {
                Ok(Ok(access)) => return Ok(access),
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            Err(format!("cannot review the token: {why}"))
        })
    }
}

/// Whether the token's account may get the path.
async fn review(client: &Client, token: String, path: String) -> Result<Access, kube::Error> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token),
            audiences: None,
        },
        ..TokenReview::default()
    };
    let tokens: Api<TokenReview> = Api::all(client.clone());
    let review = tokens.create(&PostParams::default(), &review).await?;
    let status = review.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
        return Ok(Access::Unauthenticated);
    };
    let account = user.username.clone().unwrap_or_default();
    let identity = SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        ..SubjectAccessReviewSpec::default()
    };
    let by_path = SubjectAccessReviewSpec {
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.clone()),
            verb: Some("get".to_owned()),
        }),
        ..identity.clone()
    };
    if is_allowed(client, by_path).await? {
        return Ok(Access::Allowed);
    }
    if let Some((namespace, pod)) = explained_pod(&path) {
        let by_pod = SubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                name: Some(pod.to_owned()),
                resource: Some("pods".to_owned()),
                verb: Some("get".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..identity
        };
        if is_allowed(client, by_pod).await? {
            return Ok(Access::Allowed);
        }
    }
    Ok(Access::Forbidden(Forbidden { account, path }))
}

async fn is_allowed(client: &Client, spec: SubjectAccessReviewSpec) -> Result<bool, kube::Error> {
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    /// Reviews with an API server that gives these answers, and returns what it was asked.
    async fn reviewed(path: &str, answers: &[Value]) -> (Access, Vec<Value>) {
        let (service, mut api) = mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let answers = answers.to_vec();
        let served = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (request, response) = api.next_request().await.unwrap();
                let body = request.into_body().collect_bytes().await.unwrap();
                asked.push(serde_json::from_slice(&body).unwrap());
                let body = Body::from(answer.to_string().into_bytes());
                response.send_response(Response::new(body));
            }
            asked
        });
        let access = review(&client, "secret".to_owned(), path.to_owned());
        (access.await.unwrap(), served.await.unwrap())
    }

    fn token_review(authenticated: bool) -> Value {
        json!({
            "metadata": {}, "spec": {},
            "status": {
                "authenticated": authenticated,
                "user": {"username": "u", "groups": ["g"], "extra": {"k": ["v"]}},
            },
        })
    }

    fn access_review(allowed: bool) -> Value {
        json!({"metadata": {}, "spec": {}, "status": {"allowed": allowed}})
    }

    #[tokio::test]
    async fn reviews_path_for_the_whole_identity_of_the_token() {
        let answers = [token_review(true), access_review(true)];
        let (access, asked) = reviewed("/metrics", &answers).await;
        assert_eq!(access, Access::Allowed);
        assert_eq!(asked[0]["spec"], json!({"token": "secret"}));
        let spec = json!({
            "user": "u", "groups": ["g"], "extra": {"k": ["v"]},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        });
        assert_eq!(asked[1]["spec"], spec);
    }

    #[tokio::test]
    async fn names_account_and_path_of_a_forbidden_request() {
        let answers = [token_review(true), access_review(false)];
        let (access, _) = reviewed("/metrics", &answers).await;
        let text = "u may not get /metrics; ";
        let is_named = |access: &Access| match access {
            Access::Forbidden(forbidden) => forbidden.to_string().starts_with(text),
            _ => false,
        };
        assert!(is_named(&access), "{access:?}");
        let (access, _) = reviewed("/metrics", &[token_review(false)]).await;
        assert_eq!(access, Access::Unauthenticated, "no rights are asked for");
    }

    #[tokio::test(start_paused = true)]
    async fn review_without_an_answer_ends() {
        let (service, _silent) = mock::pair::<Request<Body>, Response<Body>>();
        let review = reviewer(Client::new(service, "default"));
        let reviewed = review("secret".to_owned(), "/metrics".to_owned()).await;
        let why = reviewed.unwrap_err();
        assert_eq!(why, "cannot review the token: deadline has elapsed");
    }

    #[tokio::test]
    async fn explains_a_pod_to_whoever_may_get_it() {
        for allowed in [true, false] {
            let reviews = [access_review(false), access_review(allowed)];
            let answers = [&[token_review(true)][..], &reviews].concat();
            let (access, asked) = reviewed("/explain/team/p", &answers).await;
            assert_eq!(access == Access::Allowed, allowed, "{access:?}");
            let spec = json!({
                "user": "u", "groups": ["g"], "extra": {"k": ["v"]},
                "resourceAttributes": {
                    "namespace": "team", "name": "p", "resource": "pods", "verb": "get",
                },
            });
            assert_eq!(asked[2]["spec"], spec);
        }
    }
}
