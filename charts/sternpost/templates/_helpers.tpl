{{- define "sternpost.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sternpost.labels" -}}
app.kubernetes.io/name: sternpost
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* What pods are selected by; called with (list . "gateway"). It must never change between releases. */ -}}
{{- define "sternpost.selector" -}}
app.kubernetes.io/name: sternpost
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* An image's full name; called with (list . .Values.gateway.image). */ -}}
{{- define "sternpost.image" -}}
{{- $image := index . 1 -}}
{{- printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) -}}
{{- end -}}

{{- define "sternpost.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "sternpost.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Where the admin token and the salt key are kept: a Secret of the user's, or the one that the chart makes. */ -}}
{{- define "sternpost.adminTokenSecret" -}}
{{- default (printf "%s-gateway" (include "sternpost.name" .)) .Values.gateway.adminToken.existingSecret -}}
{{- end -}}

{{- define "sternpost.saltKeySecret" -}}
{{- default (printf "%s-gateway" (include "sternpost.name" .)) .Values.gateway.saltKey.existingSecret -}}
{{- end -}}

{{- /* Where pods go; called with .Values.gateway or .Values.operator. */ -}}
{{- define "sternpost.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The Secrets that a gateway mounts as a whole, so that a change of them arrives; takes the gateway's values. */}}
{{- define "sternpost.gatewaySecrets" -}}
volumes:
{{- if .tls.existingSecret }}
  - {name: tls, secret: {{ .tls.existingSecret | quote }}, folder: tls}
{{- end }}
{{- if .engineTls.existingSecret }}
  - {name: engine-tls, secret: {{ .engineTls.existingSecret | quote }}, folder: engine-tls}
{{- end }}
{{- if .clientKeys.existingSecret }}
  - {name: client-keys, secret: {{ .clientKeys.existingSecret | quote }}, folder: clients}
{{- end }}
{{- end }}
