//! The stable codes: what happened, in one word that a program can match (contract V-2, M-2).

use super::wire::wire_enum;

wire_enum! {
    /// The reason of a verdict. Closed: a new code is a new contract version. Each code documents
    /// its cause, the evidence behind it, and the caller's next step.
    "code" enum Code {
        /// A complete result was received and recorded. Evidence: completion marker. Next: use it.
        Ok = "OK",

        // Refused before any secret was touched.
        /// The request line, the field section or the framing is malformed. Next: correct the client.
        InvalidRequest = "INVALID_REQUEST",
        /// The target is malformed, carries userinfo, or names no host. Next: correct the target.
        InvalidTarget = "INVALID_TARGET",
        /// The invocation id of the caller is not `act_` and a ULID. Next: correct the field.
        InvalidInvocationId = "INVALID_INVOCATION_ID",
        /// Authority of the request, SNI and tunnel target disagree. Next: send one name everywhere.
        AuthorityMismatch = "AUTHORITY_MISMATCH",
        /// The method, request or channel kind is not supported. Next: use a supported one.
        UnsupportedAction = "UNSUPPORTED_ACTION",
        /// The request passed through this broker already. Next: correct the proxy configuration.
        LoopDetected = "LOOP_DETECTED",
        /// The body is longer than the route allows. Next: send less, or widen the route's limit.
        PayloadLimit = "PAYLOAD_LIMIT",
        /// No valid agent identity came with the request. Next: send agent and token.
        AgentUnauthenticated = "AGENT_UNAUTHENTICATED",
        /// No egress rule allows the target for this agent. Next: ask for a route, or leave it.
        TargetNotAllowed = "TARGET_NOT_ALLOWED",
        /// The target resolves to an address class that policy forbids. Next: a route that allows it.
        AddressProhibited = "ADDRESS_PROHIBITED",
        /// The request carries a header that the route sets itself. Next: leave the header out.
        HeaderForbidden = "HEADER_FORBIDDEN",
        /// The id or key stands for another request, of this agent or of another: which is not told. Next: use
        /// a new id for a new request.
        IdempotencyMismatch = "IDEMPOTENCY_MISMATCH",
        /// The idempotency key of the request, or the place where one belongs, can't be read: it is
        /// there twice, is no text, or its content is compressed, malformed or too long. Evidence: the
        /// field. Next: correct the field.
        IdempotencyKeyUnreadable = "IDEMPOTENCY_KEY_UNREADABLE",
        /// An equal request of this agent is in flight or in doubt (K-11). Next: follow the earlier
        /// invocation's instruction; a deliberate second effect takes a new `Affiant-Invocation`.
        InDoubtDuplicate = "IN_DOUBT_DUPLICATE",
        /// The request that would be dispatched is not the one that was approved (V-6).
        ApprovalMismatch = "APPROVAL_MISMATCH",
        /// The call is held until a person approves it. Evidence: the request for approval, and no
        /// dispatch. Next: have it approved, then send the same request with the same id.
        ApprovalPending = "APPROVAL_PENDING",
        /// Nobody decided in time, or the approval was not used in time. Next: submit it anew.
        ApprovalExpired = "APPROVAL_EXPIRED",
        /// The agent used up what a budget of policy gives it. Next: no sooner than the stated time.
        BudgetSpent = "BUDGET_SPENT",
        /// The caller went away before dispatch. Evidence: no dispatch record. Next: submit again.
        CallerGone = "CALLER_GONE",
        /// The journal can't take the records of a call. Next: later; the operator frees the disk.
        JournalUnavailable = "JOURNAL_UNAVAILABLE",
        /// The broker is going down and takes no new calls. Next: later.
        ShuttingDown = "SHUTTING_DOWN",
        /// The broker is out of descriptors or of memory for sockets. Next: later; the operator raises
        /// its limits.
        ResourcesExhausted = "RESOURCES_EXHAUSTED",
        /// A fault of the broker's own before dispatch. Next: later; report it.
        InternalError = "INTERNAL_ERROR",

        // The credential.
        /// The vault is locked. Next: an operator unlocks it.
        VaultLocked = "VAULT_LOCKED",
        /// Policy names a secret that the vault does not hold. Next: set the secret.
        SecretMissing = "SECRET_MISSING",
        /// The stored secret can't be decrypted or has the wrong form. Next: set it anew.
        SecretUnreadable = "SECRET_UNREADABLE",
        /// A source outside of the vault failed. Next: later, or repair the source.
        SecretSourceFailed = "SECRET_SOURCE_FAILED",
        /// A source outside of the vault refused (a token endpoint, a secret store). Next: sign in anew, or
        /// correct what the source knows of the broker.
        SecretSourceDenied = "SECRET_SOURCE_DENIED",
        /// What the broker needs to ask a source outside of the vault is not there: the token or the
        /// address of a secret store, a program. Next: set it up.
        SecretSourceUnset = "SECRET_SOURCE_UNSET",
        /// The route asks for a mode of injection that this gateway lacks. Next: correct the policy.
        InjectionUnsupported = "INJECTION_UNSUPPORTED",
        /// A person refused the call. Next: none.
        ApprovalDenied = "APPROVAL_DENIED",

        // Connection setup on a new connection.
        /// The resolver failed. Next: later.
        DnsError = "DNS_ERROR",
        /// The resolver did not answer in time. Next: later.
        DnsTimeout = "DNS_TIMEOUT",
        /// The name has no address. Next: correct the name.
        DestinationNotFound = "DESTINATION_NOT_FOUND",
        /// There is no route to the address. Next: later.
        DestinationUnroutable = "DESTINATION_UNROUTABLE",
        /// The destination refused the connection. Next: later.
        ConnectionRefused = "CONNECTION_REFUSED",
        /// The connection was not made in time. Next: later.
        ConnectionTimeout = "CONNECTION_TIMEOUT",
        /// The connection broke during its setup. Next: later.
        ConnectionTerminated = "CONNECTION_TERMINATED",
        /// The TLS handshake failed. Next: correct the TLS settings of either side.
        TlsProtocolError = "TLS_PROTOCOL_ERROR",
        /// The certificate does not verify for the name. Next: correct trust or the destination.
        TlsCertificateError = "TLS_CERTIFICATE_ERROR",
        /// The destination sent a TLS alert. Next: correct the TLS settings of either side.
        TlsAlertReceived = "TLS_ALERT_RECEIVED",
        /// The upstream proxy opened no tunnel. Evidence: its status. Next: correct its settings, or
        /// later.
        ProxyTunnelRefused = "PROXY_TUNNEL_REFUSED",
        /// The target's host key is not the pinned one. Next: find out why, then correct the pin.
        HostKeyMismatch = "HOST_KEY_MISMATCH",
        /// No host key is pinned for the target. Next: pin one.
        HostKeyUnknown = "HOST_KEY_UNKNOWN",
        /// The SSH transport could not be negotiated. Next: correct the settings of either side.
        SshTransportFailed = "SSH_TRANSPORT_FAILED",
        /// The target refused the injected credential. Next: correct credential or user.
        RemoteAuthFailed = "REMOTE_AUTH_FAILED",
        /// The target refused to open the channel. Next: correct the target.
        ChannelRefused = "CHANNEL_REFUSED",

        // After dispatch.
        /// The remote refused: complete, and no success claimed. Evidence: status. Next: correct it.
        RemoteRejected = "REMOTE_REJECTED",
        /// The remote answered with a complete failure of its own (5xx). Evidence: status.
        RemoteFailed = "REMOTE_FAILED",
        /// The peer's protocol says that the request was not processed (C-6). Next: later.
        RemoteNotProcessed = "REMOTE_NOT_PROCESSED",
        /// The remote refused to start the command (SSH request failure). Next: correct it.
        RequestRefused = "REQUEST_REFUSED",
        /// The connection ended before any complete result. Next: by the instruction.
        RemoteOutcomeUnknown = "REMOTE_OUTCOME_UNKNOWN",
        /// No response began in time. Next: by the instruction.
        ResponseTimeout = "RESPONSE_TIMEOUT",
        /// The response stopped coming. Next: by the instruction.
        ReadTimeout = "READ_TIMEOUT",
        /// The result broke off before its completion marker (S-2, S-8). Next: by the instruction.
        RemoteResultIncomplete = "REMOTE_RESULT_INCOMPLETE",
        /// What the remote sent breaks its protocol. Next: by the instruction.
        RemoteProtocolError = "REMOTE_PROTOCOL_ERROR",
        /// The result passed the bound that the route sets, and was cut. Next: by the instruction.
        ResultLimit = "RESULT_LIMIT",
        /// The caller went away after dispatch, and no result was recorded (D-4).
        CallerCancelled = "CALLER_CANCELLED",
        /// The broker stopped while the call was under way. Evidence: the last durable record.
        BrokerRestarted = "BROKER_RESTARTED",
        /// The connection was passed on as it is, and no fault ended it; what passed inside is not judged.
        /// Evidence: the bytes each way. Next: what was done inside is known at the remote.
        NotJudged = "NOT_JUDGED",
        /// The journal failed after dispatch; the result is not kept. Next: reconcile.
        ResultNotStored = "RESULT_NOT_STORED",

        /// The call is under way and nothing is decided yet. Next: wait for it by its id.
        InFlight = "IN_FLIGHT",

        // Delivery.
        /// The result is recorded but did not reach the caller. Next: fetch it by id.
        DeliveryFailed = "DELIVERY_FAILED",
    }
}
