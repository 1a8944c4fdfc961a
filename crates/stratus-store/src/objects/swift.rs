//! Signing in at OpenStack Swift.
//!
//! A token, and the address of the account's storage with it, comes from Keystone (version 3) or from Swift's
//! own version 1; both are asked for when the first request is sent, and again when a token has expired.
//! OpenDAL builds its requests for a placeholder.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use ureq::http::{HeaderValue, Request, StatusCode, Uri, header};

use super::services::variable;
use super::transport::SendRequest;
use crate::web::{Answer, RequestError, Web};

/// Stands for the account's storage until it is known.
pub(super) const PLACEHOLDER: &str = "http://storage.invalid";

/// Where OpenDAL puts the parts of large objects, in the same container.
pub(super) const SEGMENTS: &str = ".segments/";

pub(super) const ADVICE: &str = "looked for credentials in OS_STORAGE_URL and OS_AUTH_TOKEN; ST_AUTH, \
                                 ST_USER and ST_KEY; OS_AUTH_URL with OS_USERNAME, OS_PASSWORD, \
                                 OS_PROJECT_NAME, OS_USER_DOMAIN_NAME, OS_PROJECT_DOMAIN_NAME and \
                                 OS_REGION_NAME, or with OS_APPLICATION_CREDENTIAL_ID and \
                                 OS_APPLICATION_CREDENTIAL_SECRET";

/// The most bytes of a catalogue of services.
const MOST_CATALOGUE: u64 = 16 << 20;

/// How to get a token.
pub(super) enum Login {
    /// It is there.
    Known(Token),
    /// Swift's own, version 1.
    Simple { address: String, user: String, key: String },
    /// Keystone, version 3: the address of its tokens, what is asked, and the region that is meant.
    Keystone { address: String, question: Value, region: Option<String>, interface: String },
}

/// What a request needs.
#[derive(Clone)]
pub(super) struct Token {
    /// The account's storage, without `/` at its end.
    storage: String,
    token: HeaderValue,
}

impl Login {
    /// As the variables say that Swift's own tools read. The error says what is missing.
    pub(super) fn of_environment() -> Result<Self, String> {
        if let (Some(storage), Some(token)) =
            (variable(&["OS_STORAGE_URL"]), variable(&["OS_AUTH_TOKEN", "OS_STORAGE_TOKEN"]))
        {
            let token = Token::new(&storage, &token)
                .ok_or("OS_AUTH_TOKEN is no token: it has a control character")?;
            return Ok(Self::Known(token));
        }
        if let (Some(address), Some(user), Some(key)) =
            (variable(&["ST_AUTH"]), variable(&["ST_USER"]), variable(&["ST_KEY"]))
        {
            return Ok(Self::Simple { address, user, key });
        }
        let Some(address) = variable(&["OS_AUTH_URL"]) else {
            return Err(format!("credentials are missing: {ADVICE}"));
        };
        let address = address.trim_end_matches('/');
        let version = if address.ends_with("/v3") { "" } else { "/v3" };
        Ok(Self::Keystone {
            address: format!("{}{version}/auth/tokens", address.trim_end_matches("/v2.0")),
            question: question()?,
            region: variable(&["OS_REGION_NAME"]),
            interface: variable(&["OS_INTERFACE", "OS_ENDPOINT_TYPE"])
                .map_or_else(|| "public".to_owned(), |name| name.trim_end_matches("URL").to_owned()),
        })
    }

    /// A new token, or the answer that refuses one.
    fn sign_in(&self, web: &Web) -> Result<Result<Token, Answer>, RequestError> {
        match self {
            Self::Known(token) => Ok(Ok(token.clone())),
            Self::Simple { address, user, key } => {
                let request = Request::get(address).header("X-Auth-User", user).header("X-Auth-Key", key);
                let answer =
                    web.send(&request.body(Vec::new()).map_err(|error| unusable(web, "ST_AUTH", &error))?)?;
                if !answer.status.is_success() {
                    return Ok(Err(answer));
                }
                let text = |name: &str| answer.headers.get(name)?.to_str().ok();
                let token = text("x-storage-url").zip(text("x-auth-token"));
                let token = token.and_then(|(storage, token)| Token::new(storage, token));
                token.map(Ok).ok_or_else(|| {
                    RequestError::Permanent(
                        "signing in: the answer has no X-Storage-Url and X-Auth-Token; check ST_AUTH"
                            .to_owned(),
                    )
                })
            }
            Self::Keystone { address, question, region, interface } => {
                let request = Request::post(address).header(header::CONTENT_TYPE, "application/json");
                let body = question.to_string().into_bytes();
                let answer =
                    web.send(&request.body(body).map_err(|error| unusable(web, "OS_AUTH_URL", &error))?)?;
                if !answer.status.is_success() {
                    return Ok(Err(answer));
                }
                keystone_token(answer, region.as_deref(), interface).map(Ok).map_err(|problem| {
                    RequestError::Permanent(format!(
                        "signing in: {problem}; check OS_AUTH_URL and OS_REGION_NAME"
                    ))
                })
            }
        }
    }
}

fn unusable(web: &Web, name: &str, error: &ureq::http::Error) -> RequestError {
    RequestError::Permanent(format!("{name} cannot be used: {}", web.secrets().hide(&error.to_string())))
}

/// The body of Keystone's `POST /v3/auth/tokens`.
fn question() -> Result<Value, String> {
    let named = |value: Option<String>, id: Option<String>| match id {
        Some(id) => json!({ "id": id }),
        None => json!({ "name": value.unwrap_or_else(|| "Default".to_owned()) }),
    };
    let set = |name: &str, missing: &'static str| variable(&[name]).ok_or(missing);
    let user_domain = named(variable(&["OS_USER_DOMAIN_NAME"]), variable(&["OS_USER_DOMAIN_ID"]));
    if let Some(secret) = variable(&["OS_APPLICATION_CREDENTIAL_SECRET"]) {
        let credential = match variable(&["OS_APPLICATION_CREDENTIAL_ID"]) {
            Some(id) => json!({ "id": id, "secret": secret }),
            None => json!({
                "name": set("OS_APPLICATION_CREDENTIAL_NAME", "OS_APPLICATION_CREDENTIAL_ID is missing")?,
                "secret": secret,
                "user": { "name": set("OS_USERNAME", "OS_USERNAME is missing")?, "domain": user_domain },
            }),
        };
        let identity = json!({ "methods": ["application_credential"], "application_credential": credential });
        return Ok(json!({ "auth": { "identity": identity } }));
    }
    let user = set("OS_USERNAME", "OS_AUTH_URL is set, but OS_USERNAME is missing")?;
    let password = set("OS_PASSWORD", "OS_AUTH_URL is set, but OS_PASSWORD is missing")?;
    let project = match (
        variable(&["OS_PROJECT_ID", "OS_TENANT_ID"]),
        variable(&["OS_PROJECT_NAME", "OS_TENANT_NAME"]),
    ) {
        (Some(id), _) => json!({ "id": id }),
        (None, Some(name)) => {
            let domain = named(variable(&["OS_PROJECT_DOMAIN_NAME"]), variable(&["OS_PROJECT_DOMAIN_ID"]));
            json!({ "name": name, "domain": domain })
        }
        (None, None) => return Err("OS_AUTH_URL is set, but OS_PROJECT_NAME is missing".to_owned()),
    };
    let user = json!({ "name": user, "domain": user_domain, "password": password });
    let identity = json!({ "methods": ["password"], "password": { "user": user } });
    Ok(json!({ "auth": { "identity": identity, "scope": { "project": project } } }))
}

/// The token of Keystone's answer, and where the catalogue says that objects are stored.
fn keystone_token(answer: Answer, region: Option<&str>, interface: &str) -> Result<Token, String> {
    use std::io::Read;
    let token = answer.headers.get("x-subject-token").cloned().ok_or("the answer has no X-Subject-Token")?;
    let catalogue: Value = serde_json::from_reader(answer.body.take(MOST_CATALOGUE))
        .map_err(|_| "the answer is no JSON".to_owned())?;
    let services =
        catalogue["token"]["catalog"].as_array().ok_or("the token has no catalogue of services")?;
    let endpoints = services.iter().filter(|service| service["type"] == "object-store");
    let mut endpoints = endpoints.flat_map(|service| service["endpoints"].as_array().into_iter().flatten());
    let meant = |endpoint: &&Value| {
        let of_region = |name: &str| endpoint["region"] == name || endpoint["region_id"] == name;
        endpoint["interface"] == interface && region.is_none_or(of_region)
    };
    let storage = endpoints.find(meant).and_then(|endpoint| endpoint["url"].as_str());
    let storage = storage.ok_or_else(|| {
        format!("the catalogue has no object-store with interface {interface} in the region")
    })?;
    let token = token.to_str().map_err(|_| "the token is not ASCII")?;
    Token::new(storage, token).ok_or_else(|| "the token cannot be used".to_owned())
}

impl Token {
    fn new(storage: &str, token: &str) -> Option<Self> {
        let mut token = HeaderValue::from_str(token).ok()?;
        token.set_sensitive(true);
        Some(Self { storage: storage.trim_end_matches('/').to_owned(), token })
    }
}

/// Sends requests with a token, and gets another one when it has expired.
pub(super) struct Session {
    login: Login,
    web: Web,
    /// The token in use, and how many there were before it.
    token: Mutex<(u64, Option<Token>)>,
}

impl Session {
    pub(super) fn new(login: Login, web: Web) -> Self {
        Self { login, web, token: Mutex::new((0, None)) }
    }

    /// A token that is not the `refused`th, or the answer that refuses one. Others wait while one signs in.
    fn token(&self, refused: Option<u64>) -> Result<Result<(u64, Token), Answer>, RequestError> {
        let mut current = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let (number, Some(token)) = &*current
            && refused != Some(*number)
        {
            return Ok(Ok((*number, token.clone())));
        }
        Ok(match self.login.sign_in(&self.web)? {
            Ok(token) => {
                let number = current.0 + 1;
                *current = (number, Some(token.clone()));
                Ok((number, token))
            }
            Err(answer) => Err(answer),
        })
    }
}

impl SendRequest for Session {
    fn send(&self, mut request: Request<Vec<u8>>) -> Result<Answer, RequestError> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let mut refused = None;
        loop {
            let (number, token) = match self.token(refused)? {
                Ok(token) => token,
                Err(answer) => return Ok(answer),
            };
            let address: Uri = format!("{}{target}", token.storage).parse().map_err(|_| {
                RequestError::Permanent(
                    "the address of the account's storage cannot be used; check OS_STORAGE_URL".to_owned(),
                )
            })?;
            *request.uri_mut() = address;
            request.headers_mut().insert("X-Auth-Token", token.token);
            let answer = self.web.send(&request)?;
            let is_known = matches!(self.login, Login::Known(_));
            if answer.status != StatusCode::UNAUTHORIZED || refused.is_some() || is_known {
                return Ok(answer);
            }
            refused = Some(number);
        }
    }
}
