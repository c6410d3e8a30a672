{{- /*
Service level objectives as rule groups; called with (dict "slos" LIST "runbooks" URL).

What an objective counts is recorded as two rates, bad and all; every window's share is a sum over a sum of these, so
that a quiet hour weighs as little as it served. Alerts follow the multi-window, multi-burn-rate form of Google's
Site Reliability Workbook, chapter 5: both windows must burn the budget faster than the factor.
*/ -}}
{{- define "sternpost.slos" -}}
{{- $names := list -}}
{{- range $slo := .slos }}
{{- if has $slo.name $names }}
{{- fail (printf "monitoring.slos: the name %q stands there twice" $slo.name) }}
{{- end }}
{{- $names = append $names $slo.name }}
{{- $policy := printf "policy=~%s" (default ".*" $slo.policy | quote) }}
{{- $mine := printf "{slo=%s}" (quote $slo.name) }}
{{- $budget := printf "(1 - %v)" $slo.objective }}
- name: sternpost-slo-{{ $slo.name }}
  rules:
    - record: slo:sternpost_objective:ratio
      expr: vector({{ $slo.objective }})
      labels: {slo: {{ $slo.name | quote }}}
    - record: slo:sternpost_all:rate5m
      labels: {slo: {{ $slo.name | quote }}}
      expr: |-
        {{- include "sternpost.sloAll" (dict "slo" $slo "policy" $policy) | nindent 8 }}
    - record: slo:sternpost_bad:rate5m
      labels: {slo: {{ $slo.name | quote }}}
      expr: |-
        {{- include "sternpost.sloBad" (dict "slo" $slo "policy" $policy "mine" $mine) | nindent 8 }}
    - record: slo:sternpost_bad:ratio_rate5m
      labels: {slo: {{ $slo.name | quote }}}
      expr: slo:sternpost_bad:rate5m{{ $mine }} / (slo:sternpost_all:rate5m{{ $mine }} > 0)
    {{- range $window := list "30m" "1h" "2h" "6h" "1d" "3d" "28d" }}
    - record: slo:sternpost_bad:ratio_rate{{ $window }}
      labels: {slo: {{ $slo.name | quote }}}
      expr: |-
        sum_over_time(slo:sternpost_bad:rate5m{{ $mine }}[{{ $window }}])
          / (sum_over_time(slo:sternpost_all:rate5m{{ $mine }}[{{ $window }}]) > 0)
    {{- end }}
    - record: slo:sternpost_error_budget_remaining:ratio
      labels: {slo: {{ $slo.name | quote }}}
      expr: 1 - slo:sternpost_bad:ratio_rate28d{{ $mine }} / {{ $budget }}
    {{- range $burn := list
      (dict "factor" 14.4 "long" "1h" "short" "5m" "severity" "critical")
      (dict "factor" 6 "long" "6h" "short" "30m" "severity" "critical")
      (dict "factor" 3 "long" "1d" "short" "2h" "severity" "warning")
      (dict "factor" 1 "long" "3d" "short" "6h" "severity" "warning") }}
    - alert: SternpostErrorBudgetBurn
      expr: |-
        slo:sternpost_bad:ratio_rate{{ $burn.long }}{{ $mine }} > {{ $burn.factor }} * {{ $budget }}
          and slo:sternpost_bad:ratio_rate{{ $burn.short }}{{ $mine }} > {{ $burn.factor }} * {{ $budget }}
      labels: {slo: {{ $slo.name | quote }}, severity: {{ $burn.severity }}, window: {{ $burn.long }}}
      annotations:
        summary: {{ printf "The error budget of %s burns %v times too fast" $slo.name $burn.factor | quote }}
        description: >-
          {{ printf "Over %s, {{ $value | humanizePercentage }} of what %s counts was bad; the objective is %v." $burn.long $slo.name $slo.objective }}
        runbook_url: {{ printf "%s/SternpostErrorBudgetBurn.md" $.runbooks | quote }}
    {{- end }}
{{- end }}
{{- end -}}

{{- /* The rate of everything that an objective counts. */ -}}
{{- define "sternpost.sloAll" -}}
{{- if eq .slo.kind "Availability" -}}
sum by (namespace) (rate(sternpost_gateway_requests_total{ {{- .policy -}} , outcome!="client_gone"}[5m]))
{{- else if eq .slo.kind "FullPrefill" -}}
sum by (namespace) (rate(sternpost_gateway_ttft_seconds_count{ {{- .policy -}} , path!="unknown"}[5m]))
{{- else if eq .slo.kind "ShadowAgreement" -}}
sum by (namespace) (rate(sternpost_gateway_shadow_tokens_total{ {{- .policy -}} }[5m]))
{{- else -}}
sum by (namespace) (rate({{ include "sternpost.sloHistogram" .slo }}_count{ {{- .policy -}} }[5m]))
{{- end -}}
{{- end -}}

{{- /* The rate of what is bad of it; 0 where nothing is, for a series that does not exist says nothing. */ -}}
{{- define "sternpost.sloBad" -}}
{{- if eq .slo.kind "Availability" -}}
sum by (namespace) (rate(sternpost_gateway_requests_total{ {{- .policy -}} , outcome=~"5xx|gateway_cold_limit|gateway_overloaded|internal_error|keys_unavailable|no_engine|pool_misconfigured|upstream_cut|upstream_disconnected|upstream_timeout|upstream_unreachable"}[5m]))
  or 0 * sum by (namespace) (slo:sternpost_all:rate5m{{ .mine }})
{{- else if eq .slo.kind "FullPrefill" -}}
sum by (namespace) (rate(sternpost_gateway_ttft_seconds_count{ {{- .policy -}} , path="exact"}[5m]))
  or 0 * sum by (namespace) (slo:sternpost_all:rate5m{{ .mine }})
{{- else if eq .slo.kind "ShadowAgreement" -}}
sum by (namespace) (slo:sternpost_all:rate5m{{ .mine }})
  - sum by (namespace) (rate(sternpost_gateway_shadow_agreed_tokens_total{ {{- .policy -}} }[5m]))
{{- else -}}
sum by (namespace) (slo:sternpost_all:rate5m{{ .mine }})
  - sum by (namespace) (rate({{ include "sternpost.sloHistogram" .slo }}_bucket{ {{- .policy -}} , le=~"{{ printf "%v" .slo.seconds | replace "." "\\\\." }}(\\.0)?"}[5m]))
{{- end -}}
{{- end -}}

{{- /* The histogram of a kind that is about time. */ -}}
{{- define "sternpost.sloHistogram" -}}
{{- if eq .kind "FirstToken" }}sternpost_gateway_ttft_seconds{{ else }}sternpost_gateway_inter_token_seconds{{ end -}}
{{- end -}}
